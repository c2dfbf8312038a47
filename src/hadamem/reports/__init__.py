"""Tables, figures and pages from saved results. Nothing here trains.

    content.py     what a report says, as plain data: Report, Section, Table, Cell, Figure, Series, HeatMap
    curves.py      tables and figures from scores and learning curves of runs
    palette.py     colours and markers of memories
    data.py        a report as JSON; text.py: numbers and cells in words
    html.py        the page (templates/), plots.py: PNG and SVG, tables.py: CSV, LaTeX and Markdown
    files.py       all of them in one folder: `write_report(report, folder)`
"""
