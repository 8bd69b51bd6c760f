"""A chat template is a stranger's program: it is stopped in time, and in few bytes."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import pytest

from allformer.errors import ConfigError
from allformer.text.chat import apply_template
from tests.fuzz.mutants import TEMPLATES

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


@pytest.mark.parametrize("template", TEMPLATES, ids=range(len(TEMPLATES)))
def test_no_template_takes_long_or_raises_an_error_of_another_kind(template):
    before, begin = sys.gettrace(), time.monotonic()
    with suppress(ConfigError):
        assert len(apply_template(template, CHAT)) < 1_000
    assert time.monotonic() - begin < 10
    assert sys.gettrace() is before


@pytest.mark.parametrize("template", TEMPLATES[:16])
def test_what_would_never_end_is_refused(template):
    with pytest.raises(ConfigError, match="chat template refuses this conversation"):
        apply_template(template, CHAT)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ '=' * 20 }}", "=" * 20),
        ("{{ 2 ** 10 }}", "1024"),
        ("{{ 7 % 2 }}{{ '%s!' % messages[0].content }}", "1Hi!"),
        ("{{ messages|map(attribute='role')|join(', ') }}", "user, assistant"),
        ("{{ 'ab'.replace('b', messages[0].content) }}", "aHi"),
        ("{{ 'x'.ljust(3) }}|{{ '{:>4}'.format(1) }}", "x  |   1"),
        ("{% for i in range(1000) %}{% endfor %}{{ messages|length + 1 }}", "3"),
        ("{{ messages[0]|tojson(indent=1)|length > 10 }}", "True"),
        ("{{ 'a\nb'|indent(2) }}", "a\n  b"),
    ],
)
def test_ordinary_templates_are_as_they_were(template, text):
    assert apply_template(template, CHAT) == text
