from edgeproof.search.ladder import FLOAT_STEPS, RANGE_METHODS, Ladder
from edgeproof.target import QuantScheme, Target

CPU = Target("t:cpu", "t", "cpu", QuantScheme())


def climb(ladder, results):
    """Names asked for, telling each its entry of ``results`` (speed-up, drop), or a failure."""
    names = []
    while (recipe := ladder.ask()) is not None:
        names.append(recipe.name)
        known = results.get(recipe.name)
        ladder.tell(recipe, {"ok": True, "speedup": known[0], "drop": known[1]} if known else {"ok": False})
    return names


def test_a_target_without_integers_gets_no_int8():
    names = climb(Ladder(Target("t:cpu", "t", "cpu")), {"float": (1.2, 0.0)})
    assert names == ["float", "fp16"]


def test_every_range_method_is_tried_and_the_best_is_refined():
    results = {"float": (1.2, 0), "int8-minmax": (2.0, 0.05), "int8-percentile": (1.9, 0.002), "int8-entropy": (1.5, 0)}
    names = climb(Ladder(CPU), results)
    assert [f"int8-{m}" for m in RANGE_METHODS] == names[1 : 1 + len(RANGE_METHODS)]
    assert "int8-percentile-depthwise" in names
    assert not [n for n in names if n.startswith("int8-minmax-")]


def test_when_no_int8_keeps_its_quality_the_least_bad_is_refined():
    results = {"float": (1.2, 0), "int8-minmax": (2.0, 0.05), "int8-percentile": (1.9, 0.03)}
    assert "int8-percentile-inner" in climb(Ladder(CPU), results)


def test_int8_is_built_on_the_clean_float_graph_unless_that_failed():
    ladder = Ladder(CPU, shapes="x=1,3,8,8")
    float_recipe = ladder.ask()
    assert [s.name for s in float_recipe.steps] == ["fix_shapes", *FLOAT_STEPS]
    ladder.tell(float_recipe, {"ok": False})
    assert [s.name for s in ladder.ask().steps] == ["fix_shapes", "int8"]


def test_threads_are_tried_on_the_best_and_carried_in_its_recipe():
    ladder = Ladder(CPU, threads=(1, 2))
    names = climb(ladder, {"float": (1.2, 0.0), "int8-mse": (2.0, 0.0)})
    assert names[-2:] == ["int8-mse-1-thread", "int8-mse-2-threads"]
    assert ladder.results["int8-mse-2-threads"][0].runtime == {"threads": 2}


def test_it_proposes_about_as_many_as_it_says():
    ladder = Ladder(CPU, threads=(1, 2))
    assert len(climb(ladder, dict.fromkeys(("float", "int8-minmax"), (1.0, 0.0)))) == ladder.expected
