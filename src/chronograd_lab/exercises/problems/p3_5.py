# %% The statements of each vendor, with their sources.
from pathlib import Path

from chronograd.clouds import comparing, field_map


def show_offers(*criteria: str) -> None:
    for row in comparing.offers():
        if row["criterion"] in criteria and row["platform"] in comparing.VENDORS:
            print(f"{row['criterion']}, {row['platform']}: {row['says']}\n    ({row['source']}, {row['date']})")


# %% 3.5.1 Frameworks and versions.
show_offers("Frameworks")
# %% 3.5.2 Compute units.
show_offers("Accelerators")
# %% 3.5.3 Tools for the life cycle of a model.
show_offers("Model registry", "Pipelines", "Endpoints", "Experiments and lineage")
# %% 3.5.4 Monitoring.
show_offers("Application logs", "GPU, CPU and memory")
# %% 3.5.5 Visualisation while a job trains.
show_offers("Pictures while it trains")
# %% 3.5.6 Write the file of one job for each platform into the folder `jobs`. Then print the fields with the same meaning.
Path("jobs").mkdir(exist_ok=True)
for made in field_map.files():
    Path("jobs", made["file"]).write_text(made["text"], encoding="utf-8")
    print(f"===== jobs/{made['file']}\n{made['text'] if made['platform'] in comparing.VENDORS else ''}")
for row in field_map.field_map(comparing.VENDORS):
    print(f"{field_map.WORDS[row['word']]:<20} {row['platform']:<10} {', '.join(row['paths']) or '–'}")
fielded = field_map.with_field(field_map.field_map(comparing.VENDORS))
print(f"with a field in all four files: {sum(map(all, fielded.values()))} of {len(fielded)}")
