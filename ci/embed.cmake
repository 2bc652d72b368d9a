# Writes a C file with the texts of some files, one after the other, each with its #line.
# cmake -DOUT=file.c -DNAME=symbol "-DFILES=a.cl;b.cl" -P ci/embed.cmake
set(text "")
foreach(file ${FILES})
  file(READ ${file} part HEX)
  get_filename_component(name ${file} NAME)
  string(HEX "#line 1 \"${name}\"\n" line)
  string(APPEND text ${line} ${part})
endforeach()
string(REGEX REPLACE "(................................)" "\\1\n" text "${text}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," text "${text}")
file(WRITE ${OUT} "extern const char ${NAME}[];\nconst char ${NAME}[] = {\n${text}\n0};\n")
