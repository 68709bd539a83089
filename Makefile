# A thin front of CMake. `make demo` and `make test` are all a new user needs.
BUILD ?= build
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
CTEST = ctest --output-on-failure --no-tests=error
SOURCES = $(shell git ls-files '*.c' '*.h')

.PHONY: all build demo test asan tsan clang bench soak format format-check tidy layers-check fresh-check install clean deps deps-build

all: build

deps:
	@scripts/install-deps test
deps-build:
	@scripts/install-deps build

build: deps-build
	@cmake -G Ninja -S . -B $(BUILD) >/dev/null
	@ninja -C $(BUILD) -j $(JOBS) --quiet

demo: build
	@scripts/demo $(BUILD)

test: deps
	@cmake -G Ninja -S . -B $(BUILD) >/dev/null
	@ninja -C $(BUILD) -j $(JOBS) --quiet
	@tests/layers.py
	@cd $(BUILD) && $(CTEST)

# The whole suite under address, undefined-behaviour and leak checks.
asan: deps
	@cmake -G Ninja -S . -B $(BUILD)-asan -DSANDLOT_SANITIZE=address >/dev/null
	@ninja -C $(BUILD)-asan -j $(JOBS) --quiet
	@cd $(BUILD)-asan && ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 $(CTEST)

tsan: deps
	@cmake -G Ninja -S . -B $(BUILD)-tsan -DSANDLOT_SANITIZE=thread -DCMAKE_C_COMPILER=clang >/dev/null
	@ninja -C $(BUILD)-tsan -j $(JOBS) --quiet
	@cd $(BUILD)-tsan && TSAN_OPTIONS="suppressions=$(CURDIR)/tests/tsan.supp ignore_noninstrumented_modules=1" $(CTEST)

# Builds everything with clang's warnings as errors.
clang: deps
	@cmake -G Ninja -S . -B $(BUILD)-clang -DCMAKE_C_COMPILER=clang -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
	@ninja -C $(BUILD)-clang -j $(JOBS) --quiet

bench: build
	@$(BUILD)/sandlot_bench $(BUILD)

soak: deps build
	@SANDLOT_SOAK=1 sh -c 'cd $(BUILD) && $(CTEST) -R integration'

format:
	@clang-format -i $(SOURCES)
format-check:
	@clang-format --dry-run --Werror $(SOURCES)
# clang-tidy over everything that is not generated.
tidy: clang
	@git ls-files 'broker/*.c' 'common/*.c' 'agent/*.c' 'spawner/*.c' 'providers/*.c' 'clients/*.c' | xargs -P $(JOBS) -n 6 clang-tidy -p $(BUILD)-clang --quiet 2>/dev/null

layers-check:
	@tests/layers.py

# demo and test in a minimal Debian 12 root made for the purpose (slow; needs root and mmdebstrap).
fresh-check:
	@tests/fresh-check

install: deps-build
	@cmake -G Ninja -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@ninja -C $(BUILD) -j $(JOBS) --quiet
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-clang
