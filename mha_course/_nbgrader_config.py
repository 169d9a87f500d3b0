"""The settings of nbgrader for a class: marks come from the course's judge."""

c = get_config()  # type: ignore[name-defined]

# The judge stands where nbgrader would run a submission itself.
c.Autograde.autograde_preprocessors = [
    "mha_course._nbgrader.judge",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
# A check that a student has deleted is put back; otherwise, it would have no mark.
c.OverwriteCells.add_missing_cells = True
# A stub stays as the page has it.
c.ClearSolutions.code_stub = {"python": ""}
c.ExportApp.plugin_class = "mha_course._nbgrader.GradesCsv"
