"""Sections: records in, one heading with figure, table and takeaway out. `generic_page` picks those that apply."""

from chronograd.report.sections.agreement import accuracy_of_prediction_section
from chronograd.report.sections.generic import generic_page, highlight, load_runs
from chronograd.report.sections.learning import Forecast, training_section
from chronograd.report.sections.plan import plan_section
from chronograd.report.sections.roofline import roofline_section
from chronograd.report.sections.steps import parts_section, scaling_section
from chronograd.report.sections.work import counts_section, operators_section

__all__ = [
    "Forecast",
    "accuracy_of_prediction_section",
    "counts_section",
    "generic_page",
    "highlight",
    "load_runs",
    "operators_section",
    "parts_section",
    "plan_section",
    "roofline_section",
    "scaling_section",
    "training_section",
]
