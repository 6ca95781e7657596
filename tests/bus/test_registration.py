"""What the bus keeps of a plugin."""

from hookbus.bus import Bus
from hookbus.dialects import Implementation
from hookbus.markers import OWNERS, hookimpl


class Plugin:
    role = "monitor"

    @hookimpl(every=2)
    def on_fit_start(self):
        pass

    @hookimpl(specname="on_fit_start", every=3)
    def third(self):
        pass

    @hookimpl
    def on_fit_end(self):
        pass


def test_a_registration_tells_who_it_is_and_what_it_does():
    bus = Bus.load(autoload=False)
    bus.register(Plugin(), "p", owner="plugin", source="-p")
    known = bus.registration("p")
    assert (known.name, known.owner, known.source, known.role) == ("p", "plugin", "-p", "monitor")
    assert [made.hook for made in known.implementations] == ["on_fit_end", "on_fit_start", "on_fit_start"]
    assert set(known.filters) == {"on_fit_start", "on_fit_start (third)"}


def test_rank_is_owner_then_listed_then_position():
    bus = Bus.load(autoload=False)
    made = Implementation("x", print, ())
    bus.register(Plugin(), "direct")
    bus.register(Plugin(), "module", owner="module")
    listed = Plugin()
    bus.sync("callback", [listed])
    ranks = {name: bus.registration(name).ranked(made, OWNERS).rank for name in bus.names()}
    assert ranks["Plugin"] < ranks["direct"] < ranks["module"]
    backwards = tuple(reversed(OWNERS))
    assert (
        bus.registration("module").ranked(made, backwards).rank
        < bus.registration("direct").ranked(made, backwards).rank
    )
