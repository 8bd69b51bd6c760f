"""The small files beside a vocabulary: which tokens are special, what is added, the chat template.

`tokenizer_config.json`, and where that lists no added tokens the older `special_tokens_map.json`
and `added_tokens.json`; `chat_template.jinja`, or the template inside the config. They overlap;
which one wins is as in transformers 5 (`PreTrainedTokenizerBase._from_pretrained`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from allformer.errors import DataError
from allformer.families.kinds import short
from allformer.json_file import read_object
from allformer.text.options import check_options
from allformer.text.settings import SPECIAL_NAMES

Token = str | AddedToken


@dataclass(frozen=True)
class Sidecar:
    """What the small files say: `read_sidecar(path, None).options.get("do_lower_case")`."""

    options: dict[str, Any]  # all settings; special tokens as text or AddedToken
    added: dict[int, AddedToken]  # by the id that they must have
    specific: dict[str, Token]  # special tokens of names beyond the usual seven
    chat_template: str | dict[str, str] | None
    config: dict[str, Any]  # tokenizer_config.json as it was read

    def named(self, name: str, default: Token | None = None) -> Token | None:
        """The special token of a name: `sidecar.named("pad", "<pad>")`."""
        value = self.options.get(f"{name}_token", default)
        if value is None or isinstance(value, str | AddedToken):
            return value
        raise DataError(f"tokenizer_config.json: {name}_token={short(value)} must be a text")


def read_sidecar(directory: Path, pipeline: dict[str, Any] | None) -> Sidecar:
    """Read them all; `pipeline` is the directory's tokenizer.json, where it has one."""
    config = read_json(directory / "tokenizer_config.json") or {}
    check_options(config, str(directory / "tokenizer_config.json"))
    options = {key: _tokens(value) for key, value in config.items() if key != "tokenizer_class"}
    if pipeline is not None:  # whether <s> and </s> are put around is in its post-processor
        options.pop("add_bos_token", None)
        options.pop("add_eos_token", None)
    if "additional_special_tokens" in options and not options.get("extra_special_tokens"):
        options["extra_special_tokens"] = options.pop("additional_special_tokens")
    added = options.pop("added_tokens_decoder", None)
    if added is None:
        _older_files(directory, options)
    specific = {
        key: options.pop(key)
        for key, value in list(options.items())
        if key.endswith("_token")
        and key.removesuffix("_token") not in SPECIAL_NAMES
        and isinstance(value, str | AddedToken)
    }
    if isinstance(options.get("extra_special_tokens"), dict):
        specific |= options.pop("extra_special_tokens")
    if added is None:
        added = _added_tokens(directory, options, pipeline)
    else:
        added = {_id(i): _added(token) for i, token in added.items()}
    by_text = {token.content: token for token in added.values()}
    for name in SPECIAL_NAMES:
        key = f"{name}_token"
        if options.get(key) is not None:
            options[key] = by_text.get(str(options[key]), options[key])
    template = _chat_template(directory, options.pop("chat_template", None))
    return Sidecar(options, added, specific, template, config)


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is no such file."""
    if not path.is_file():
        return None
    return read_object(path, DataError)


def _older_files(directory: Path, options: dict[str, Any]) -> None:
    for key, value in (read_json(directory / "special_tokens_map.json") or {}).items():
        if isinstance(value, dict) and key != "extra_special_tokens":
            value = _added({**value, "special": True})
        elif isinstance(value, list):
            value = [
                _added({**token, "special": True}) if isinstance(token, dict) else token
                for token in value
            ]
            if key == "extra_special_tokens":
                before = list(options.get(key) or [])
                value = before + [token for token in value if token not in before]
        options[key] = value
    check_options(_plain(options), str(directory / "special_tokens_map.json"))


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Without the tokens that are made already."""
    return {
        key: [str(x) if isinstance(x, AddedToken) else x for x in value]
        if isinstance(value, list)
        else value
        for key, value in options.items()
        if not isinstance(value, dict)
    }


def _added_tokens(
    directory: Path, options: dict[str, Any], pipeline: dict[str, Any] | None
) -> dict[int, AddedToken]:
    special = {str(options[f"{n}_token"]) for n in SPECIAL_NAMES if options.get(f"{n}_token")}
    special |= {str(token) for token in options.get("extra_special_tokens") or ()}
    added = {}
    for text, i in (read_json(directory / "added_tokens.json") or {}).items():
        known = text in special
        added[_id(i)] = AddedToken(text, normalized=not known, special=known)
    for entry in (pipeline or {}).get("added_tokens", ()):
        added[entry["id"]] = _added({key: value for key, value in entry.items() if key != "id"})
    return added


def _id(value: Any) -> int:
    """An id, which JSON has as a text where it is a key."""
    if type(value) is int and 0 <= value < 2**31:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    raise DataError(f"an added token has the id {short(value)}, which must be a whole number")


def _tokens(value: Any) -> Any:
    """`{"__type": "AddedToken", "content": …}` → AddedToken, wherever it stands."""
    if isinstance(value, dict):
        if value.get("__type") == "AddedToken":
            return _added(value)
        return {key: _tokens(item) for key, item in value.items()}
    return [_tokens(item) for item in value] if isinstance(value, list) else value


def _added(value: Any) -> AddedToken:
    if isinstance(value, AddedToken):
        return value
    try:
        fields = {key: item for key, item in value.items() if key != "__type"}
        return AddedToken(**fields)
    except (AttributeError, TypeError) as error:
        raise DataError(f"an added token is described as {short(value)}: {error}") from None


def _chat_template(directory: Path, inside: Any) -> str | dict[str, str] | None:
    """Files win over the config; `chat_templates/NAME.jinja` are further ones."""
    files = {"default": directory / "chat_template.jinja"}
    for file in sorted((directory / "chat_templates").glob("*.jinja")):
        files[file.stem] = file
    found = {name: file.read_text("utf-8") for name, file in files.items() if file.is_file()}
    if found:
        return found["default"] if list(found) == ["default"] else found
    if isinstance(inside, list):
        return {entry["name"]: entry["template"] for entry in inside}
    return inside or None
