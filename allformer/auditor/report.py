"""What an audit says: findings with evidence, what passed, what could not apply and why.

report = audit(model, kind="decoder", vocab=1000)
report.ok, report.findings, report.passed, report.not_applicable
print(report.text()); report.to_json(); report.to_junit(); report.to_markdown()
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from allformer.auditor.catalogue import CATALOGUE


@dataclass(frozen=True)
class Finding:
    """One bug: `.check` is its id, `.evidence` has the numbers, `.mend` says what to do."""

    check: str
    evidence: str
    where: str = ""
    severity: str = ""  # "error" or "warning"
    why: str = ""
    mend: str = ""
    link: str = ""
    title: str = ""

    def in_language(self, lang: str = "en") -> Finding:
        """With the catalogue's title, reason and mend in English or Chinese."""
        entry = CATALOGUE[self.check]
        i = 1 if lang == "zh" else 0
        return replace(
            self, severity=self.severity or entry.severity, why=entry.why[i], mend=entry.mend[i],
            link=entry.link, title=entry.title[i],
        )  # fmt: skip


@dataclass
class Report:
    """The result of `audit`. True findings make `ok` false; notes never do."""

    subject: str
    kind: str
    inferred: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    not_applicable: dict[str, str] = field(default_factory=dict)  # check → reason
    notes: list[str] = field(default_factory=list)
    profile: list[str] = field(default_factory=list)
    seconds: float = 0.0
    lang: str = "en"

    @property
    def ok(self) -> bool:
        """No findings."""
        return not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.text()

    @property
    def checks(self) -> set[str]:
        """The ids of what was found."""
        return {f.check for f in self.findings}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def to_json(self, indent: int | None = 2) -> str:
        """One object; `Report.from_json` reads it back."""
        return json.dumps(self.as_dict(), indent=indent, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """What `to_json` wrote."""
        values = json.loads(text)
        values.pop("ok", None)
        values["findings"] = [Finding(**f) for f in values["findings"]]
        return cls(**values)

    def text(self, colour: bool = False, width: int = 100) -> str:
        """For a terminal."""
        from allformer.auditor.render import render

        return render(self, colour, width)

    def to_markdown(self) -> str:
        """For a pull request or a page."""
        head = f"# Audit of `{self.subject}` ({self.kind})"
        state = "No findings." if self.ok else f"{len(self.findings)} finding(s)."
        lines = [
            head,
            "",
            f"{state} {len(self.passed)} checks passed, "
            f"{len(self.not_applicable)} did not apply. {self.seconds:.1f} s.",
            "",
        ]
        for f in self.findings:
            lines += [
                f"## `{f.check}`: {f.title} ({f.severity})",
                "",
                f"- **where**: `{f.where or 'the module'}`",
                f"- **evidence**: {f.evidence}",
                f"- **why**: {f.why}",
                f"- **mend**: {f.mend}",
                f"- {f.link}",
                "",
            ]
        for title, rows in (
            ("Inferred", self.inferred),
            ("Profile", self.profile),
            ("Notes", self.notes),
        ):
            if rows:
                lines += [f"## {title}", "", *(f"- {row}" for row in rows), ""]
        lines += ["## Passed", "", ", ".join(f"`{p}`" for p in self.passed) or "nothing", ""]
        lines += ["## Not applicable", "", "| check | reason |", "|---|---|"]
        lines += [f"| `{k}` | {v.replace('|', '/')} |" for k, v in self.not_applicable.items()]
        return "\n".join(lines) + "\n"

    def to_junit(self) -> str:
        """One test case for each check: findings are failures, the inapplicable is skipped."""
        name = quoteattr(f"audit {self.subject}")
        total = len(self.checks) + len(self.passed) + len(self.not_applicable)
        out = ['<?xml version="1.0" encoding="UTF-8"?>']
        out.append(
            f'<testsuite name={name} tests="{total}" failures="{len(self.checks)}" '
            f'skipped="{len(self.not_applicable)}" time="{self.seconds:.3f}">'
        )
        case = "<testcase classname={} name={}".format(quoteattr(self.subject), "{}")
        for check in dict.fromkeys(f.check for f in self.findings):
            out.append(case.format(quoteattr(check)) + ">")
            for f in self.findings:
                if f.check == check:
                    body = escape(
                        f"where: {f.where}\nevidence: {f.evidence}\nwhy: {f.why}\n"
                        f"mend: {f.mend}\n{f.link}"
                    )
                    out.append(f"<failure message={quoteattr(f.title)}>{body}</failure>")
            out.append("</testcase>")
        out += [case.format(quoteattr(check)) + "/>" for check in self.passed]
        for check, reason in self.not_applicable.items():
            skipped = f"><skipped message={quoteattr(reason)}/></testcase>"
            out.append(case.format(quoteattr(check)) + skipped)
        return "\n".join([*out, "</testsuite>"]) + "\n"
