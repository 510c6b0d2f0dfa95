"""`[[cluster]]`: what is read, and what is wrong with its line and what to do."""

from __future__ import annotations

import pytest

from fluxsched.errors import InvalidValue
from fluxsched.runtime.config.reader import parse_config
from fluxsched.runtime.config.tables.clusters import CLUSTERS_MAX, ClusterSettings

ONE = '[[cluster]]\nname = "{}"\nuri = "ipc:///run/{}"\n'


def test_a_cluster_is_read_and_is_a_group():
    text = ONE.format("east", "east") + 'queue = "batch"\nkey = "keys/east.key"\nreturn-after = "2m"\n'
    text += '[queues.far]\ngroup = "east"\n[[scheduler]]\npolicy = "easy"\ngroups = ["east"]\n'
    config = parse_config(text, "/s/t")
    assert config.clusters == (ClusterSettings("east", "ipc:///run/east", "batch", "/s/keys/east.key", 120.0),)
    assert not config.clusters[0].is_flux
    flux = parse_config('[[cluster]]\nname = "f"\nuri = "local:///run/flux/local"\n', "t").clusters[0]
    assert (flux.is_flux, flux.return_after_s) == (True, 60.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[cluster]]\nuri = "ipc:///x"\n', 't:1: [[cluster]] has no name, such as name = "east"'),
        ('[[cluster]]\nname = "a"\n', "has no uri, such as uri ="),
        ('[[cluster]]\nname = "a"\nuri = "http://x"\n', "t:3: [[cluster]] uri: 'http://x' is no address"),
        ('[[cluster]]\nname = "default"\nuri = "ipc:///x"\n', "there is a group 'default' already"),
        (f"{ONE.format('a', 'a')}{ONE.format('a', 'b')}", "t:5: [[cluster]] name: there is a group 'a' already"),
        ('[resource.groups]\na = "0"\n' + ONE.format("a", "a"), "t:4: [[cluster]] name: there is a group 'a' already"),
        (ONE.format("a b", "x"), "group name 'a b' must be letters"),
        (ONE.format("a", "a") + 'return-after = "0s"\n', "t:4: [[cluster]] return-after: 0 s is not above 0"),
        (ONE.format("a", "a") + "weight = 1\n", "unknown key 'weight'"),
    ],
)
def test_faults_have_their_line_and_the_remedy(text, said):
    with pytest.raises(InvalidValue) as caught:
        parse_config(text, "t")
    assert said in str(caught.value).replace(" number 1", "").replace(" number 2", "")


def test_there_is_a_limit():
    many = "".join(ONE.format(f"c{number}", number) for number in range(CLUSTERS_MAX + 1))
    with pytest.raises(InvalidValue, match="above the limit of 64 clusters"):
        parse_config(many, "t")
