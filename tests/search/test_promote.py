from edgeproof.search.promote import Promote
from search.probes import ALL, Table, drive, facts

THREE = facts({"a": (0.1, 1.0, 2.0), "b": (0.3, 2.0, 1.0), "c": (0.2, 2.0, 1.0)})


def promote(**settings):
    strategy = Promote(ALL, **settings)
    strategy.attach(Table(THREE))
    return strategy


def test_one_layer_is_promoted_per_evaluation_the_most_sensitive_first():
    assert drive(promote(), lambda _: 1.0, THREE) == [{"a", "b", "c"}, {"a", "c"}, {"a"}]


def test_it_stops_at_the_first_good_result():
    assert drive(promote(), lambda s: 0.0 if "b" not in s else 1.0, THREE)[-1] == {"a", "c"}


def test_it_stops_at_the_number_of_evaluations():
    assert len(drive(promote(evaluations=2), lambda _: 1.0, THREE)) == 2


def test_without_a_probe_nothing_is_proposed():
    assert Promote(ALL).ask() is None
