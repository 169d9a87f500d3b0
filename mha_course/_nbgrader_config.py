"""The settings of nbgrader for a class: marks come from the course's judge."""

c = get_config()  # type: ignore[name-defined]

c.Autograde.sanitize_preprocessors = [
    "mha_course._nbgrader.PutBack",
    "nbgrader.preprocessors.ClearOutput",
    "nbgrader.preprocessors.DeduplicateIds",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]
# The judge stands where nbgrader would run a submission itself.
c.Autograde.autograde_preprocessors = [
    "mha_course._nbgrader.Judge",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
# Allow more if a page trains models.
c.Judge.cell_seconds = 60
# A stub stays as the page has it.
c.ClearSolutions.code_stub = {"python": ""}
c.ExportApp.plugin_class = "mha_course._nbgrader.GradesCsv"
