#!/bin/sh
# Runs inside a root made of the base and tools layers; the image is /out.
set -eu
gcc -std=gnu11 -Wall -Wextra -Werror -Os -s -static -o /out/pause /src/pause.c
