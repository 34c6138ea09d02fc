"""Settings that a server tells as the labels of one metric, as Prometheus' `*_info` metrics do."""

import re

_LABEL = re.compile(r'(\w+)="([^"]*)"')


def info_labels(page: str, metric: str) -> dict[str, str]:
    """Labels of the first sample of `metric` on a metrics page; empty where it is not there."""
    found = re.search(rf"^{re.escape(metric)}\{{(.*)\}} ", page, re.MULTILINE)
    return dict(_LABEL.findall(found[1])) if found else {}
