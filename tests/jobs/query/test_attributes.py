"""One declaration for each attribute: listings, messages and columns agree."""

from __future__ import annotations

from typing import Any

import msgspec

from fluxsched.cli.jobs.fields import FIELDS
from fluxsched.core.job_attributes import JOB_ATTRIBUTES
from fluxsched.jobs.query.attributes import FLUX_ATTRIBUTES, LISTED, RESULT_BITS
from fluxsched.protocol.messages.jobs import JobInfo


def test_the_listing_has_what_its_message_declares() -> None:
    listed = {name for name, one in JOB_ATTRIBUTES.items() if one.listed}
    assert {name for name, _ in LISTED} == listed == set(JobInfo.__struct_fields__)
    _, schemas = msgspec.json.schema_components([JobInfo])
    properties: dict[str, Any] = schemas["JobInfo"]["properties"]
    for name in listed:
        found = properties[name]
        kinds = {str(one.get("type", "object")) for one in found.get("anyOf", [found])} - {"null"}
        kinds |= {"string"} if "enum" in found or any("enum" in one for one in found.get("anyOf", [])) else set()
        assert JOB_ATTRIBUTES[name].type in kinds, name


def test_each_attribute_is_in_some_listing_and_shown_only_if_it_is_listed() -> None:
    for name, one in JOB_ATTRIBUTES.items():
        assert one.listed or one.flux, name
        assert (name in FLUX_ATTRIBUTES) == one.flux, name
        if one.heading:
            assert one.listed, name
            assert FIELDS[name].heading == one.heading
    assert RESULT_BITS.keys() == {"COMPLETED", "FAILED", "CANCELED", "TIMEOUT"}
