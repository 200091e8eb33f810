from .gathering import write_report as write_report
