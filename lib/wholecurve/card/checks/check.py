"""One check of a card: what is asked, how it came out, and the numbers."""

from dataclasses import dataclass

PASS, FLAG, NOT_CHECKED = "pass", "flag", "not checked"


@dataclass(frozen=True)
class Check:
    """``rule`` is what must hold, ``found`` what was found, with its numbers. A flag is for the reader to weigh."""

    name: str
    rule: str
    status: str
    found: str


class Rule:
    """A question with its rule, so that each answer is one short call."""

    def __init__(self, name: str, rule: str):
        self.name, self.rule = name, rule

    def passes(self, found: str) -> Check:
        return Check(self.name, self.rule, PASS, found)

    def flags(self, found: str) -> Check:
        return Check(self.name, self.rule, FLAG, found)

    def not_checked(self, why: str) -> Check:
        return Check(self.name, self.rule, NOT_CHECKED, why)

    def holds(self, right: bool, found: str) -> Check:
        """Pass where it is right, else a flag, with the same numbers."""
        return self.passes(found) if right else self.flags(found)
