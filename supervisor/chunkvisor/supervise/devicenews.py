"""What becomes of devices, collected until the loop's next turn."""

from chunkvisor.devices.health import Opinion
from chunkvisor.devices.stations import Station
from chunkvisor.supervise import stimuli as on


class DeviceNews:
    """Hears it of the stations."""

    def __init__(self) -> None:
        self._news: list[on.Stimulus] = []

    def take(self) -> list[on.Stimulus]:
        """All since the last time."""
        news, self._news = self._news, []
        return news

    def joined(self, station: Station, opinion: Opinion | None) -> None:
        """See Listener."""
        kind = station.device.model
        self._news.append(on.DeviceJoined(station.number, str(station), station.site.node, kind, opinion))

    def looked(self, station: Station, opinion: Opinion) -> None:
        """See Listener."""
        self._news.append(on.Looked(station.number, opinion))

    def node_left(self, node: str) -> None:
        """See Listener."""
        self._news.append(on.NodeLeft(node))
