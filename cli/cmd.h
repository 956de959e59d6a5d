/* All verbs (cmd_<verb>.c), and the help pages (cmd_help.c). */
#ifndef CLI_CMD_H
#define CLI_CMD_H

#include <stdio.h>

#include "verb.h"

extern const CliVerb cli_verb_train, cli_verb_sample, cli_verb_encode, cli_verb_decode, cli_verb_text,
    cli_verb_forward, cli_verb_inspect, cli_verb_report, cli_verb_plan, cli_verb_plan_memory,
    cli_verb_bench_attention, cli_verb_bench_context, cli_verb_bench_part, cli_verb_bench_step, cli_verb_help,
    cli_verb_version, cli_verb_lora_convert, cli_verb_lora_merge;

void cli_print_overview(FILE *to);        /* the list of all verbs */
void cli_print_page(const CliVerb *verb); /* the help page of one verb, to stdout */

#endif
