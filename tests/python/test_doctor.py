"""`lily doctor`: says that a device is right, in a table and in JSON, and fails where it cannot look."""

import json

from conftest import ROOT

FIXTURE = ROOT / "tests/fixtures/tiny-a"


def test_the_emulated_device_is_right_on_both_routes(lily):
    done = lily("doctor", "--model", FIXTURE, "--device", "emulated", "--longest", "300", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    value = json.loads(done.stdout)
    findings = value["findings"]
    assert value["ok"] and all(f["ok"] and f["error"] <= f["tolerance"] for f in findings)
    devices = {f["device"] for f in findings}
    assert len(devices) == 2 and all("every access checked" in device for device in devices)
    ops = {(f["phase"], f["op"]) for f in findings}
    assert {("decode", "gdn_step"), ("prefill", "grouped_down"), ("decode", "whole step (KL)")} <= ops


def test_the_processor_is_right_and_the_table_says_so(lily):
    done = lily("doctor", "--model", FIXTURE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing differs" in done.stdout and "WRONG" not in done.stdout


def test_a_model_that_is_not_there_is_an_error(lily):
    done = lily("doctor", "--model", "/nowhere")
    assert done.returncode == 1 and "/nowhere" in done.stderr and done.stdout == ""
