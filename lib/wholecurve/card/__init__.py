"""The methodology card of a run: one page on what was compared, how, what checks found, and what it does not show."""

from wholecurve.card.card import Card, make_card

__all__ = ["Card", "make_card"]
