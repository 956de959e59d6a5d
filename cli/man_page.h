/* The manual page dsv(1), made of the pages of all verbs and of the table of options. */
#ifndef CLI_MAN_PAGE_H
#define CLI_MAN_PAGE_H

/* Prints the page to stdout, as groff's man macros. */
void cli_print_man_page(void);

#endif
