"""What the papers print, and what comes out here: ``fedsense reproduce``.

cards.py     published.toml of a paper: every printed number, and which run gives the same here
plan.py      the experiments a table needs, as recipes; which datasets are not there
outcome.py   ours from the runs' folders, beside the published
pictures.py  the figures
own/         figures that plain runs do not give: a theorem, projections, loss curves, …
gallery.py   a page of all of it, with other experiments, and where each number comes from
"""
