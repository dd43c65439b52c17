from edgeproof.quant.schemes import OPENVINO
from edgeproof.search.ladder import FLOAT_STEPS, RANGE_METHODS, REFINED, Ladder
from edgeproof.target import QuantScheme, Target
from search.probes import Table, facts

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


def test_every_range_method_is_tried_without_a_probe():
    names = climb(Ladder(CPU), {"float": (1.2, 0), "int8-minmax": (2.0, 0.0)})
    assert names == ["float", *(f"int8-{m}" for m in RANGE_METHODS), "fp16"]


def test_only_the_methods_whose_outputs_are_closest_are_measured():
    ladder = Ladder(CPU)
    probe = Table(errors={"int8-percentile": 0.3, "int8-minmax": 0.1, "int8-entropy": 0.4, "int8-mse": 0.2})
    ladder.attach(probe)
    names = climb(ladder, {"float": (1.2, 0), "int8-minmax": (2.0, 0.0)})
    assert names == ["float", "int8-minmax", "int8-mse", "fp16"]
    assert set(probe.errors) <= set(probe.asked)


def test_a_method_that_cannot_be_made_is_proposed_so_that_its_reason_is_shown():
    ladder = Ladder(CPU)
    ladder.attach(Table())
    assert climb(ladder, {"float": (1.2, 0)}) == ["float", f"int8-{RANGE_METHODS[0]}", "fp16"]


def test_mixed_precision_follows_with_the_better_method_over_all_layers():
    ladder = Ladder(CPU, threads=(1,))
    known = facts({"a": (0.2, 2.0, 1.0), "b": (0.1, 1.0, 2.0)})
    ladder.attach(Table(known, {"int8-minmax": 0.1, "int8-mse": 0.2}))
    results = {"float": (1.2, 0), "int8-minmax": (2.0, 0.5), "int8-mse": (1.9, 0.0), "int8-mixed-1": (2.5, 0.0)}
    names = climb(ladder, results)
    assert names == ["float", "int8-minmax", "int8-mse", "int8-mixed-1", "fp16", "int8-mixed-1-1-thread"]
    recipe = ladder.results["int8-mixed-1"][0]
    assert recipe.steps[-1].settings == {"method": "mse", "keep": "b"}
    assert ladder.results["int8-mixed-1-1-thread"][0].reasons == recipe.reasons


def refined(drop):
    """A climb where refining brings the outputs closer, and what it was told: the names, and the ladder."""
    ladder = Ladder(CPU)
    known = facts({"a": (0.2, 2.0, 1.0), "b": (0.1, 1.0, 2.0)})
    ladder.attach(Table(known, {"int8-minmax": 0.1, "int8-mse": 0.2, "int8-mse-refined": 0.05}))
    results = {"float": (1.2, 0), "int8-minmax": (2.0, 0.5), "int8-mse": (1.9, 0.1), "int8-mse-refined": (1.9, drop)}
    return climb(ladder, {**results, "int8-mixed-1": (2.5, 0.0)}), ladder


def test_the_better_method_is_refined_where_that_brings_the_outputs_closer_and_mixed_starts_from_it():
    names, ladder = refined(0.1)
    assert names == ["float", "int8-minmax", "int8-mse", "int8-mse-refined", "int8-mixed-1", "fp16"]
    settings = dict(ladder.results["int8-mse-refined"][0].steps[-1].settings)
    assert settings == {"method": "mse", "depthwise": False, "first_last": False, **REFINED}
    assert ladder.results["int8-mixed-1"][0].steps[-1].settings == {"method": "mse", **REFINED, "keep": "b"}


def test_mixed_precision_starts_from_the_plain_method_where_refining_lost_quality():
    _, ladder = refined(0.2)
    assert ladder.results["int8-mixed-1"][0].steps[-1].settings == {"method": "mse", "keep": "b"}


def taught(results, training_s=60.0):
    """Names that are asked for when training is possible."""
    ladder = Ladder(CPU, training_s=training_s)
    ladder.attach(Table(facts({"a": (0.2, 2.0, 1.0), "b": (0.1, 1.0, 0.5)}), {"int8-minmax": 0.1, "int8-mse": 0.2}))
    return climb(ladder, results), ladder


SPOILT = {"float": (1.2, 0), "int8-minmax": (2.0, 0.5), "int8-mse": (1.9, 0.4), "int8-mixed-1": (2.5, 0.3)}


def test_where_int8_is_fast_and_wrong_all_of_it_is_taught_within_the_time():
    names, ladder = taught({**SPOILT, "int8-distilled": (2.4, 0.0)})
    assert "int8-distilled" in names
    int8, distil = ladder.results["int8-distilled"][0].steps[-2:]
    assert (int8.name, distil.name) == ("int8", "distil")
    assert "keep" not in int8.settings
    assert distil.settings["seconds"] == 60.0
    assert ladder.best("int8-").name == "int8-distilled"


def test_nothing_is_trained_without_time_or_where_post_training_means_suffice_or_int8_is_slow():
    assert "int8-distilled" not in taught(SPOILT, training_s=0.0)[0]
    good = {**SPOILT, "int8-mixed-1": (2.5, 0.0)}
    assert "int8-distilled" not in taught(good)[0]
    slow = {name: (0.8, drop) for name, (_, drop) in SPOILT.items()}
    assert "int8-distilled" not in taught(slow)[0]


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


def test_a_target_that_fuses_hard_activations_gets_them_in_its_form():
    ladder = Ladder(Target("o:cpu", "o", "cpu", OPENVINO))
    assert [s.name for s in ladder.ask().steps] == [*FLOAT_STEPS, "spell_activations"]
