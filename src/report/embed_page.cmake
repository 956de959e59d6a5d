# embed_page.cmake: cmake -DFROM=page.html -DTO=page.c -P embed_page.cmake
# Writes the file FROM as a C array, zero-terminated.
file(READ ${FROM} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REPEAT "." 80 line)
string(REGEX REPLACE "(${line})" "\\1\n" bytes "${bytes}")
file(WRITE ${TO}
    "/* Written by embed_page.cmake from page.html. */\n"
    "#include \"report/report_page.h\"\n\n"
    "const char dsvi_report_template[] = {\n${bytes}0\n};\n")
