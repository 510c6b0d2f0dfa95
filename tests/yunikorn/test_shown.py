"""Messages in logs: every field that the interface marks is ***, wherever it is, and long messages are cut."""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf")

from fluxsched.yunikorn import messages
from fluxsched.yunikorn.messages import SHOWN_CHARS_MAX, log_text


def test_secrets_are_masked_and_all_else_is_shown() -> None:
    request = messages.RegisterResourceManagerRequest(
        rmID="rm", policyGroup="batch", config="SECRET text", extraConfig={"key": "SECRET value"}, buildInfo={"v": "1"}
    )
    text = log_text(request)
    assert "SECRET" not in text
    assert text == (
        'RegisterResourceManagerRequest {"rmID": "rm", "policyGroup": "batch", "buildInfo": {"v": "1"}, '
        '"config": "***", "extraConfig": "***"}'
    )


def test_just_the_fields_that_the_interface_marks_are_secret() -> None:
    kinds = [kind for name, kind in vars(messages).items() if name[0].isupper() and hasattr(kind, "DESCRIPTOR")]
    secret = {field.full_name for kind in kinds for field in kind.DESCRIPTOR.fields if messages.is_secret(field)}
    names = ("RegisterResourceManagerRequest", "UpdateConfigurationRequest")
    assert secret == {f"si.v1.{name}.{field}" for name in names for field in ("config", "extraConfig")}


def test_fields_within_are_shown() -> None:
    ask = {"allocationKey": "a\n", "resourceAsk": {"resources": {"vcore": {"value": 10}}}}
    text = log_text(messages.AllocationRequest(asks=[ask], rmID="rm"))
    amounts = '{"resources": {"vcore": {"value": "10"}}}'
    assert text.endswith(f'{{"asks": [{{"allocationKey": "a\\n", "resourceAsk": {amounts}}}], "rmID": "rm"}}')


def test_long_messages_are_cut() -> None:
    text = log_text(messages.NodeRequest(nodes=[{"nodeID": "n" * 100}] * 1000))
    assert len(text) < SHOWN_CHARS_MAX + 100
    assert text.endswith(" characters)")
