"""Where an instance is looked for that was started again."""

from __future__ import annotations

from types import SimpleNamespace

from fluxsched.runtime.clusters import peer


def test_an_instance_is_found_again_by_its_state_directory(monkeypatch):
    tried, live = [], []
    infos = {"ipc:///run/a": {"uri": "ipc:///run/a", "pid": 1, "statedir": "/state"}}
    monkeypatch.setattr(peer, "ZmqClient", lambda place, keys, lost_after_ms: tried.append(place) or SimpleNamespace())
    monkeypatch.setattr(peer, "written_at", infos.get)
    monkeypatch.setattr(peer, "live_instances", lambda: live)
    connector = peer.PeerConnector()
    connector.connect("ipc:///run/a", None)
    connector.connect("ipc:///run/a", None)  # it is gone
    live[:] = [{"uri": "ipc:///run/c", "statedir": None}, {"uri": "ipc:///run/b", "statedir": "/state"}]
    connector.connect("ipc:///run/a", None)
    connector.connect("tcp://east:5555", None)
    assert tried == ["ipc:///run/a", "ipc:///run/a", "ipc:///run/b", "tcp://east:5555"]
