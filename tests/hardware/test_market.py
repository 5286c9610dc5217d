"""The valid price, its age, and updates by the user."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from chronograd.errors import FileFormatError
from chronograd.hardware import catalog, market
from chronograd.hardware.catalog import Price

COLUMNS = "vendor,instance,device,count,price_usd_per_hour,kind,includes_host,date,tag,source,vcpus,up_to"


@pytest.fixture(autouse=True)
def _now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(market, "today", lambda: date(2026, 11, 22))


def price(**fields: object) -> Price:
    stated = {"vendor": "A", "instance": "x", "device": "v100", "count": 1, "price_usd_per_hour": 2, "kind": "on-demand",
              "includes_host": True, "date": "2026-11-22", "tag": "assumed", "source": "a test"}  # fmt: skip
    return Price.model_validate({**stated, **fields})


def listed(monkeypatch: pytest.MonkeyPatch, *rows: Price) -> None:
    monkeypatch.setattr(catalog, "_prices", lambda: rows)


class TestPriceChoice:
    def test_latest_price_per_instance_then_lowest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        listed(
            monkeypatch, price(date="2025", price_usd_per_hour=1), price(), price(instance="y", price_usd_per_hour=3)
        )
        assert market.price_of("v100") == price()
        assert [row.price_usd_per_hour for row in market.offers("v100")] == [2, 3]
        assert market.price_of("v100", kind="spot") is None
        assert market.price_of("v100", vendor="a") == price()
        assert market.price_of("rtx5090") is None

    def test_price_without_host_is_last(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bare = price(instance="GPU", price_usd_per_hour=0.1, includes_host=False)
        listed(monkeypatch, bare, price())
        assert market.price_of("v100") == price()
        listed(monkeypatch, bare)
        assert market.price_of("v100") == bare

    def test_whole_instances_are_charged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Eight for $8 beat three at $3 each. One for $4 does not beat eight for $8 if only one device is needed."""
        eight, one = (
            price(instance="eight", count=8, price_usd_per_hour=8),
            price(instance="one", price_usd_per_hour=4, up_to=8),
        )
        listed(monkeypatch, eight, one)
        assert [market.price_of("v100", count=n) for n in (1, 2, 3, 8)] == [one, eight, eight, eight]
        assert [float(eight.usd_per_hour(n)) for n in (1, 8, 9)] == [8, 8, 16]
        assert [float(one.usd_per_hour(n)) for n in (1, 3)] == [4, 12]

    def test_single_machine_is_preferred_over_several(self, monkeypatch: pytest.MonkeyPatch) -> None:
        four, one = price(instance="four", count=4, price_usd_per_hour=20), price()
        listed(monkeypatch, four, one)
        assert market.price_of("v100", count=4) == four

    def test_many_devices_are_rented_by_whole_nodes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A V100 node has eight: 16 of them take two of its machines, not 16 machines of one for less."""
        eight, one = price(instance="eight", count=8, price_usd_per_hour=40), price()
        listed(monkeypatch, eight, one)
        assert [market.price_of("v100", count=n) for n in (8, 16)] == [eight, eight]


class TestAge:
    @pytest.mark.parametrize(
        ("held", "years", "is_old"),
        [("2026-11-22", 0, False), ("2025-11-22", 1, False), ("2025-11-20", 1.005, True), ("2021", 5.39, True), ("2026-11", 0.02, False),
         ("", None, True)],
    )  # fmt: skip
    def test_age_from_middle_of_stated_period(self, held: str, years: float | None, is_old: bool) -> None:
        row = price(date=held)
        assert market.age_years(row) == (None if years is None else pytest.approx(years, abs=0.01))
        assert market.is_old(row) == is_old

    def test_spread_grows_with_root_of_age(self) -> None:
        one, four = (market.sigma_log(price(date=day)) for day in ("2025-11-22", "2022-11-22"))
        assert four == pytest.approx(2 * one, rel=1e-3)
        assert market.sigma_log(price()) == 0
        assert market.sigma_log(price(date="")) > four


class TestUpdate:
    def test_latest_price_is_used_after_update(self, tmp_path: Path) -> None:
        before = market.price_of("h100", vendor="AWS")
        assert before is not None
        newer = tmp_path / "newer.csv"
        newer.write_text(f"{COLUMNS}\nAWS,p5.48xlarge,h100,8,40,on-demand,true,2026-11-21,verified,me,192,\n")
        rows, own = market.update_prices(newer)
        assert (len(rows), own) == (1, catalog.user_prices_path())
        after = market.price_of("h100", vendor="AWS")
        assert after is not None
        assert (after.price_usd_per_hour, after.vcpus, after.up_to) == (40, 192, None)
        again = (
            newer.read_text().replace(",40,", ",39,") + "Mine,pod,rtx5090,1,0.5,spot,true,2026-11-01,assumed,me,,4\n"
        )
        newer.write_text(again)
        market.update_prices(newer)
        assert [row.price_usd_per_hour for row in catalog.read_prices(own)] == [39, 0.5]
        spot = market.price_of("rtx5090", "spot", count=4)
        assert spot is not None
        assert float(spot.usd_per_hour(4)) == 2.0

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("h100", "h1000", "line 2: unknown device 'h1000'; did you mean h100"),
            ("2026-11-21", "", "line 2: date is ''"),
            ("2026-11-21", "2026-12", "line 2: date is '2026-12'"),
            ("on-demand", "cheap", "kind"),
            (",40,", ",-1,", "price_usd_per_hour"),
            ("\nAWS", "\n\nAWS,", "is not a price"),
        ],
    )
    def test_invalid_price_file_changes_nothing(self, tmp_path: Path, old: str, new: str, message: str) -> None:
        text = f"{COLUMNS}\nAWS,p5.48xlarge,h100,8,40,on-demand,true,2026-11-21,verified,me,192,\n"
        path = tmp_path / "bad.csv"
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(FileFormatError, match=message):
            market.update_prices(path)
        assert not catalog.user_prices_path().exists()

    @pytest.mark.parametrize("separator", [";", "\t"])
    def test_table_of_a_spreadsheet(self, tmp_path: Path, separator: str) -> None:
        """Excel writes a mark of the byte order and, in many countries, semicolons and decimal commas."""
        path = tmp_path / "preise.csv"
        lines = [
            COLUMNS,
            "Mine,x,v100,1,3#06,on-demand,true,2026-11-21,verified,me",
            "Mine,y,v100,4,12,spot,true,2026-11-21,verified,me",
        ]
        path.write_text(
            "\ufeff" + "\r\n".join(lines).replace(",", separator).replace("#", ",") + "\r\n", encoding="utf-8"
        )
        rows, _ = market.update_prices(path)
        assert [(row.instance, row.count, row.price_usd_per_hour) for row in rows] == [("x", 1, 3.06), ("y", 4, 12)]

    def test_another_table_or_form_is_refused_with_its_place(self, tmp_path: Path) -> None:
        path = tmp_path / "other.csv"
        path.write_text("cloud,machine,usd\naws,p3.2xlarge,3.06\n")
        with pytest.raises(FileFormatError) as refusal:
            market.update_prices(path)
        assert refusal.value.message == "other.csv has no column vendor; its columns are cloud, machine, usd"
        path.write_text(f"{COLUMNS}\nMine,x,v100,1,3.06,on-demand,true,01.03.2026,verified,me\n")
        with pytest.raises(FileFormatError, match=r"line 2(.|\n)*date") as refusal:
            market.update_prices(path)
        assert "2026-03-01" in str(refusal.value.hint)
        assert not catalog.user_prices_path().exists()

    def test_empty_price_table(self, tmp_path: Path) -> None:
        path = tmp_path / "empty.csv"
        path.write_text(f"{COLUMNS}\n")
        with pytest.raises(FileFormatError, match="has no prices"):
            market.update_prices(path)
