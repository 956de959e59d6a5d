"""The variants of learn.py: names of rules of sparsity, and the options of dsv that they stand for.

table_of(steps) has the variants whose names have no grammar. Other names are read from left to right by
options_of(name): lists6.25-key64-zcube-grain8-from10-finish has lists of 6.25 % of the keys, a key tail with
means of 64 keys, and so on. A rule with a new option needs a new part in PARTS."""
import re

# Lists have a target of captured mass. The guard keeps a block sparse while the lists capture at least the
# target minus 0.05; it sets no bound for single heads. With the order hilbert (FRAME) the tokens of a group
# are in one frame; variants that name no order use it, except default and default-*.
# All runs begin with the options BARE, which variants change: lists of at most 20 % of the keys in tubes,
# with nothing in place of the keys left out. The configuration files set sparse.chunk.
BARE = ["sparse.order=tube", "sparse.grain=1", "sparse.tail=none", "sparse.target_mass=0.9",
        "sparse.target_density=0.2", "sparse.min_keys=0", "sparse.max_error=0.35",
        "sparse.max_head_error=0.9", "sparse.dense_finish=0"]
# The default rule of dsv.
DEFAULT = ["sparse.order=zcube", "sparse.grain=8", "sparse.group=64", "sparse.chunk=4", "sparse.tail=key",
           "sparse.tail_run=128", "sparse.target_mass=0", "sparse.target_density=0.05",
           "sparse.min_keys=512", "sparse.max_error=0.65", "sparse.max_head_error=1",
           "sparse.dense_finish=0.15"]
FRAME, TUBE = ["sparse.order=hilbert"], ["sparse.order=tube"]
MASS = {mass: FRAME + [f"sparse.target_mass={mass / 100}", "sparse.target_density=0",
                       f"sparse.min_mass={mass / 100 - 0.05:.2f}", "sparse.min_head_mass=0"]
        for mass in (50, 60, 70, 80, 90, 95)}
# Lists of ten per cent of the keys from a given step on, without a bound on captured mass.
TENTH = FRAME + ["sparse.target_mass=0", "sparse.target_density=0.1", "sparse.min_mass=0",
                 "sparse.max_density=1"]
BLOCKS = ["sparse.selector=pooled", "sparse.order=cube", "sparse.group=64", "sparse.grain=64"]
# Lists in tubes from the first step of a run on that does not share it, whatever they capture, with a tail or
# without.
LISTS = TUBE + ["sparse.target_mass=0", "sparse.min_mass=0", "sparse.min_head_mass=0", "sparse.max_density=1",
                "sparse.max_error=100", "sparse.max_head_error=100"]
# The first part of a name has a percentage: lists5 holds lists of 5 % of the keys. The blocks are those of
# VSA: 64 keys, chosen by pooled scores.
KINDS = {"lists": [], "blocks": BLOCKS}
# Further parts of a name; <n> is a number above 0. On blocks, the mean queries of `coarse` attend to the mean
# keys of the blocks left out, which is a coarse branch without a learnt gate.
PARTS = {
    "group<n>": ["sparse.group=<n>"],
    "query<n>": ["sparse.tail=query", "sparse.tail_chunk=<n>"],
    "key<n>": ["sparse.tail=key", "sparse.tail_run=<n>"],
    "coarse": ["sparse.tail=both", "sparse.tail_chunk=64", "sparse.tail_run=64"],
    **{order: [f"sparse.order={order}"]
       for order in ("tube", "cube", "zcube", "hilbert", "hilbert3d", "raster")},
    "pooled": ["sparse.selector=pooled", "sparse.grain=1"],
    "grain<n>": ["sparse.grain=<n>"],
    "chunk<n>": ["sparse.chunk=<n>"],
    "keychunk<n>": ["sparse.key_chunk=<n>"],
    "rank<n>": ["sparse.rank=<n>"],
    "topk": ["sparse.rule=topk"],
    "explore": ["sparse.explore_kind=random", "sparse.explore=0.2"],
    "near": ["sparse.explore_kind=neighbours", "sparse.explore=0.2"],
}
# The last parts of a name. -from10 has no options: learn.py starts the run earlier.
FROM10 = "-from10"
# {ending: fraction of the steps at the end that VARIANT with this ending trains with dense attention}
FINISHES = {"-finish": 0.15, "-finish10": 0.1, "-finish5": 0.05}


def table_of(steps):
    """{name: options}, in the order in which variants are run."""
    early, late, end = (f"sparse.warmup_steps={int(steps * part)}" for part in (0.1, 0.5, 0.8))
    table = {"dense": [f"sparse.warmup_steps={steps + 1}"]}  # measured like other variants, but never sparse
    # On a GPU two equal runs differ, as the order of sums varies.
    table["dense-again"] = table["dense-again-from10"] = table["dense"]
    for mass, settings in MASS.items():
        table[f"mass{mass}"] = settings
    table["tenth-early"] = TENTH + [early]
    table["tenth-late"] = TENTH + [late]
    table["twentieth-early"] = TENTH + ["sparse.target_density=0.05", early]
    for name, density in (("tenth", 0.1), ("fifth", 0.2)):  # of the keys, if the lists capture 0.8
        table[f"{name}-guarded80"] = FRAME + ["sparse.target_mass=0", f"sparse.target_density={density}",
                                      "sparse.min_mass=0.8"]
    table["blocks-early"] = TENTH + BLOCKS + [early]
    table["blocks-late"] = TENTH + BLOCKS + [late]
    for mass, settings in MASS.items():
        table[f"mass{mass}-tube"] = settings + TUBE
    table["default"] = DEFAULT
    # BARE, the default when these variants got their names: 0.9 of the mass within at most 20 % of the keys.
    # A block is sparse if its lists capture at least 0.3 of its mass, and 0.1 of every head's.
    for group in (64, 128):
        table[f"default-group{group}"] = [f"sparse.group={group}"]
        for percent in (15, 25, 30):  # largest density, in place of 20 %
            table[f"default-group{group}-density{percent}"] = [f"sparse.group={group}",
                                                               f"sparse.target_density={percent / 100}"]
    table["default-group128-unguarded"] = ["sparse.group=128", "sparse.min_mass=0"]
    tenth_tube = TENTH + TUBE + [early]
    table["tenth-early-tube"] = tenth_tube
    table["tenth-late-tube"] = TENTH + TUBE + [late]
    table["fifth-early-tube"] = tenth_tube + ["sparse.target_density=0.2"]
    table["twentieth-early-tube"] = tenth_tube + ["sparse.target_density=0.05"]
    # Compares groups inside one frame with other groups: smaller ones, and ones that span frames.
    table["tenth-early-group16"] = TENTH + ["sparse.group=16", early]
    for order in ("cube", "hilbert3d"):
        table[f"tenth-early-{order}"] = TENTH + [f"sparse.order={order}", early]
    for group in (128, 32):
        table[f"tenth-early-tube-group{group}"] = tenth_tube + [f"sparse.group={group}"]
    table["mass80-tube-group128"] = table["mass80-tube"] + ["sparse.group=128"]
    table["tenth-early-tube-topk"] = tenth_tube + ["sparse.rule=topk"]
    table["window-early-tube"] = tenth_tube + ["sparse.selector=window", "sparse.rule=topk"]
    for chunk in (4, 8):
        table[f"tenth-early-tube-chunk{chunk}"] = tenth_tube + [f"sparse.chunk={chunk}"]
    table["mass80-tube-scratch"] = table["mass80-tube"]
    table["tenth-early-tube-scratch"] = tenth_tube
    table["window-early"] = TENTH + ["sparse.selector=window", "sparse.rule=topk", early]
    table["random-early"] = TENTH + ["sparse.selector=window", "sparse.explore_kind=random",
                                     "sparse.explore=1", early]
    for kind in ("random", "neighbours", "blocks"):
        for percent in (1, 2, 5):
            table[f"mass90-{kind}{percent}"] = MASS[90] + [f"sparse.explore_kind={kind}",
                                                           f"sparse.explore={percent / 100}"]
    for kind in ("random", "blocks"):
        table[f"tenth-early-{kind}20"] = TENTH + [f"sparse.explore_kind={kind}", "sparse.explore=0.2", early]
    # The two stages of the DSV paper: the predictor first learns during dense attention, then selects.
    table["predictor-mass90"] = MASS[90] + ["sparse.selector=predictor"]
    table["predictor-tenth-late"] = TENTH + ["sparse.selector=predictor", "sparse.rule=topk", late]
    table["tenth-end-tube"] = TENTH + TUBE + [end]
    table["predictor-tenth-end-tube"] = TENTH + TUBE + ["sparse.selector=predictor", "sparse.rule=topk", end]
    for kind, percent in (("random", 5), ("blocks", 20), ("neighbours", 5)):
        table[f"tenth-early-tube-{kind}{percent}"] = tenth_tube + [f"sparse.explore_kind={kind}",
                                                                   f"sparse.explore={percent / 100}"]
    return table


# ---- names with a grammar ----

def finish_of(name):
    """The ending of a variant with a dense finish, or None."""
    return next((ending for ending in FINISHES if name.endswith(ending)), None)


def options_of(name):
    """The options of a name outside of the table. Raises ValueError with a sentence that names the part
    without a meaning."""
    def refuse(part, what):
        raise ValueError(f"no variant is called {name}: its part '{part}' {what}")

    finish = finish_of(name)
    first, *parts = name.removesuffix(finish or "").removesuffix(FROM10).split("-")
    kind = re.fullmatch(r"([a-z]+)([0-9]+(?:\.[0-9]+)?)", first)
    if not kind or kind[1] not in KINDS or not 0 < float(kind[2]) <= 100:
        refuse(first, f"is not {' or '.join(KINDS)} with a percentage above 0 and at most 100")
    options = [*LISTS, f"sparse.target_density={float(kind[2]) / 100:g}", *KINDS[kind[1]]]
    set_by = {}
    for part in parts:
        if f"-{part}" in (FROM10, *FINISHES):
            refuse(part, "must stand at the end, where only a finish may follow from10")
        word = re.fullmatch(r"(.*?[a-z])([1-9][0-9]*)?", part)
        meaning = word and PARTS.get(word[1] + ("<n>" if word[2] else ""))
        if not meaning:
            refuse(part, "has no meaning")
        for option in meaning:
            key = option.split("=")[0]
            if key in set_by:
                refuse(part, f"sets {key}, which '{set_by[key]}' sets already")
            set_by[key] = part
            options.append(option.replace("<n>", word[2] or ""))
    return options + ([f"sparse.dense_finish={FINISHES[finish]}"] if finish else [])


def grammar():
    """Explains in some lines which names options_of reads."""
    def rows(meanings):
        return [f"{part:22} {' '.join(options)}" for part, options in meanings.items()]

    density = [*LISTS, "sparse.target_density=<percent>/100"]
    endings = {FROM10: ["continues dense attention from a tenth of the steps on, see --trunk"],
               **{ending: [f"sparse.dense_finish={part}"] for ending, part in FINISHES.items()}}
    return "\n".join([
        "Other names consist of parts, joined by hyphens and read from left to right, for example",
        "lists6.25-key64-zcube-grain8-chunk4-from10-finish. The first part is one of these:",
        *rows({f"{kind}<percent>": density + more for kind, more in KINDS.items()}),
        "", "Then follow any of these, where <n> is a number and no option is set twice:",
        *rows(PARTS),
        "", "The name may end with -from10, with a finish, or with -from10 and then a finish:",
        *rows(endings)])
