package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/node"
)

// parseServe parses a command line of serve without running it.
func parseServe(args ...string) (*serveCmd, error) {
	var flags cli
	parser, err := kong.New(&flags, kong.Resolvers(&configFile{}), kong.Vars{"host": "host"}, kong.Exit(func(int) {}))
	if err != nil {
		return nil, err
	}
	_, err = parser.Parse(append([]string{"serve"}, args...))
	return &flags.Serve, err
}

// TestServeSettings checks that each flag of serve has an environment variable
// and a key in the file. A flag takes precedence over the environment, which
// takes precedence over the file.
func TestServeSettings(t *testing.T) {
	clearEnv(t)
	parser, err := kong.New(&cli{}, kong.Vars{"host": "host"})
	expect.NoError(t, err)
	for _, command := range parser.Model.Children {
		if command.Name != "serve" {
			continue
		}
		for _, f := range command.Flags {
			want := "RLNODE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
			if f.Name != "help" && (len(f.Envs) != 1 || f.Envs[0] != want) {
				t.Errorf("--%s: have environment %v, want %s", f.Name, f.Envs, want)
			}
		}
	}

	config := file(t, "config.yaml",
		"name: from-file\nhttp-port: 1\nadmin-port: 2\nmax-counters: 3\nlog-format: json\n")
	t.Setenv("RLNODE_NAME", "from-env")
	t.Setenv("RLNODE_HTTP_PORT", "11")
	have, err := parseServe("--config", config, "--name", "from-flag")
	expect.NoError(t, err)
	if have.Name != "from-flag" || have.HTTPPort != 11 || have.AdminPort != 2 ||
		have.MaxCounters != 3 || have.LogFormat != "json" || have.LogLevel != "info" {
		t.Errorf("have %+v", have)
	}
	t.Setenv("RLNODE_CONFIG", config)
	have, err = parseServe()
	if err != nil || have.Name != "from-env" || have.AdminPort != 2 {
		t.Errorf("--config by environment: have %+v, %v", have, err)
	}
}

func clearEnv(t *testing.T) {
	t.Helper()
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "RLNODE_") {
			t.Setenv(name, "") // restored at the end
			os.Unsetenv(name)
		}
	}
}

func TestConfigFileMistakes(t *testing.T) {
	clearEnv(t)
	for _, test := range []struct{ have, want string }{
		{"nmae: x", `:1:1: unknown setting "nmae"`},
		{"name: x\n\nports: 1", `:3:1: unknown setting "ports"`},
		{"config: other.yaml", `unknown setting "config"`},
		{"help: true", `unknown setting "help"`},
		{"name: [a, b]", "single value"},
		{"name: {a: b}", "single value"},
		{"name:", "single value"},
		{"name: x\nadmin-token: ''", `:2:1: "admin-token" must not be empty`},
		{"name: a\nname: b", "name"},
		{"- name", "want a mapping"},
		{"name", "want a mapping"},
		{"name: x\n---\nname: y", "only one document"},
		{"name: [", ":1:8: "},
		{"http-port: many", "many"},
		{"log-level: loud", "loud"},
		{"\x00\xff", ""},
	} {
		_, err := parseServe("--config", file(t, "config.yaml", test.have))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: have %v, want %q", test.have, err, test.want)
		}
	}
	if _, err := parseServe("--config", "/nowhere.yaml"); err == nil ||
		!strings.Contains(err.Error(), "/nowhere.yaml") {
		t.Errorf("a missing file: have %v", err)
	}
	for _, have := range []string{"", "# nothing\n", "---\nname: x\n", `{"name": "x", "http-port": 1}`} {
		if _, err := parseServe("--config", file(t, "config.yaml", have)); err != nil {
			t.Errorf("%q: have %v, want no error", have, err)
		}
	}
}

func FuzzConfig(f *testing.F) {
	for _, seed := range []string{"name: x", "name: [", "a: &a [*a]", "{name: x, http-port: 1}",
		"? a\n: b", "!!x y: z", "name: |\n  x"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		values, err := parseConfig("f", src, map[string]bool{"name": true})
		for key := range values {
			if key != "name" {
				t.Fatalf("unknown key %q was accepted, error %v", key, err)
			}
		}
	})
}

// TestFlagNames: a mistake in any field of a node's Config is reported with the name of a flag.
func TestFlagNames(t *testing.T) {
	flags := reflect.TypeFor[node.Config]()
	parser, err := kong.New(&cli{}, kong.Vars{"host": "host"})
	expect.NoError(t, err)
	known := map[string]bool{}
	for _, command := range parser.Model.Children {
		for _, f := range command.Flags {
			known["--"+f.Name] = known["--"+f.Name] || command.Name == "serve"
		}
	}
	// nothing can be wrong with these
	none := []string{"RulesFrom", "MemoryLimit", "OnError", "AnyPort", "AnyGRPCPort",
		"LeaveOnClose", "Rejoin", "Logger", "FreeMemory", "Ready", "FieldName"}
	for i := range flags.NumField() {
		field := flags.Field(i)
		if field.IsExported() && !known[flagNames[field.Name]] && !slices.Contains(none, field.Name) {
			t.Errorf("%s has no flag", field.Name)
		}
	}
}

func TestAdminBind(t *testing.T) {
	clearEnv(t)
	for _, test := range []struct{ bind, admin, want string }{
		{"0.0.0.0", "", "127.0.0.1"},
		{"127.0.0.11", "", "127.0.0.11"},
		{"::1", "", "::1"},
		{"::", "", "127.0.0.1"},
		{"192.0.2.1", "192.0.2.2", "192.0.2.2"},
	} {
		c, err := parseServe("--bind", test.bind, "--admin-bind", test.admin)
		if err == nil {
			err = c.complete()
		}
		if err != nil || c.AdminBind != test.want {
			t.Errorf("%s, %q: have %q, %v; want %q", test.bind, test.admin, c.AdminBind, err, test.want)
		}
	}
}

// TestOrderOfMistakes: all mistakes are reported, in the order of the help.
func TestOrderOfMistakes(t *testing.T) {
	clearEnv(t)
	for range 20 {
		c, err := parseServe("--region=", "--data-dir=", "--max-counters=0", "--usage-subjects=0",
			"--redis-port=-1", "--grpc-port=-1", "--http-port=-1", "--admin-port=-1")
		expect.NoError(t, err)
		text := c.complete().Error()

		last := -1
		for _, flag := range []string{"--data-dir:", "--region:", "--max-counters:", "--usage-subjects:",
			"--http-port:", "--grpc-port:", "--redis-port:", "--admin-port:"} {
			at := strings.Index(text, flag)
			if at <= last {
				t.Fatalf("%s is missing or out of order:\n%s", flag, text)
			}
			last = at
		}
	}
}

// TestHelp: every command has help, and asking for help on an unknown one is an error.
func TestHelp(t *testing.T) {
	parser, err := kong.New(&cli{}, kong.Vars{"host": "host"})
	expect.NoError(t, err)
	help := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		return run(context.Background(), args, strings.NewReader(""), &out, &errs), out.String(), errs.String()
	}
	for _, args := range [][]string{nil, {"help"}, {"--help"}} {
		if code, out, _ := help(args...); code != 0 || !strings.Contains(out, "rlnode serve") {
			t.Errorf("%v: have %d, %q", args, code, out)
		}
	}
	for _, command := range parser.Model.Children {
		if command.Name == "help" {
			continue
		}
		for _, args := range [][]string{{"help", command.Name}, {command.Name, "--help"}} {
			code, out, errs := help(args...)
			if code != 0 || !strings.Contains(out, "Usage: rlnode "+command.Name) || errs != "" {
				t.Errorf("%v: have %d, %q, %q", args, code, out, errs)
			}
			if !strings.Contains(out, "rlnode "+command.Name) {
				t.Errorf("%v: no example", args)
			}
		}
	}
	if code, _, errs := help("frobnicate"); code != 2 || !strings.Contains(errs, "frobnicate") {
		t.Errorf("an unknown command: have %d, %q", code, errs)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	code, out, _ := toolEnv(t, nil, "", "version")
	if code != 0 || !strings.HasPrefix(out, "rlnode ") {
		t.Errorf("have %d, %q", code, out)
	}
	if code, out, _ := toolEnv(t, nil, "", "version", "--json"); code != 0 || !strings.Contains(out, `"go":"go1`) {
		t.Errorf("have %d, %q", code, out)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := file(t, "good.yaml", yearRules(5))
	bad := file(t, "bad.yaml",
		"version: 1\nrules:\n  - {name: a, key: [ip], limits: [{limit: -1, per: 1m}]}\n  - {name: b, colour: red}\n")
	for _, test := range []struct {
		stdin  string
		args   []string
		code   int
		stdout []string
		stderr string
	}{
		{"", []string{good}, 0, []string{"valid"}, ""},
		{"", []string{bad}, 1, []string{bad + ":3:", bad + ":4:", "limit", "colour"}, ""},
		{yearRules(5), []string{"-"}, 0, []string{"<stdin>: valid"}, ""},
		{"rules: [}", []string{"-"}, 1, []string{"<stdin>:1:"}, ""},
		{strings.Replace(yearRules(5), "key: [ip],", "key: [ip], shadow: true, usage: monthly,", 1),
			[]string{"-"}, 0, []string{"valid"}, "<stdin>:3:"},
		{"", []string{"/nowhere.yaml"}, 1, nil, "/nowhere.yaml"},
		{"", nil, 2, nil, "<file>"},
	} {
		code, stdout, stderr := tool(t, test.stdin, append([]string{"validate"}, test.args...)...)
		if code != test.code || !strings.Contains(stderr, test.stderr) {
			t.Errorf("%v: have %d, %q, want %d, %q", test.args, code, stderr, test.code, test.stderr)
		}
		for _, want := range test.stdout {
			if !strings.Contains(stdout, want) {
				t.Errorf("%v: have %q, want %q", test.args, stdout, want)
			}
		}
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	for i := range 64 * steps {
		if end := uint64(bucketEnd(i)); end < 1<<62 && i < 57*steps && bucketOf(end) != i {
			t.Fatalf("bucket %d ends at %d, which is in bucket %d", i, end, bucketOf(end))
		}
	}
	for i := 1; i <= 1000; i++ {
		h.add(time.Duration(i) * time.Millisecond)
	}
	for q, want := range map[float64]float64{0.5: 0.5, 0.9: 0.9, 0.99: 0.99, 1: 1} {
		if have := h.quantile(q).Seconds(); have < want*0.97 || have > want*1.04 {
			t.Errorf("quantile %v: have %v s, want about %v s", q, have, want)
		}
	}
	expect.Equal(t, fmt.Sprint(h.quantile(1)), "1s", "the maximum")
}

func TestWarnings(t *testing.T) {
	var out strings.Builder
	c := &serveCmd{AdminBind: "0.0.0.0"}
	c.warn(slog.New(slog.NewTextHandler(&out, nil)), []string{
		"RLNODE_JOINT=a", "RLNODE_HTTP_PORT=1", "RLNODE_JOIN=b", "RLNODE_ADDR=x", "RLNODE_PORT_8080_TCP=tcp://10.0.0.1:8080", "RLNODE_SERVICE_HOST=10.0.0.1", "PATH=/bin"})
	have := out.String()
	if strings.Count(have, "\n") != 2 || !strings.Contains(have, "RLNODE_JOINT") ||
		!strings.Contains(have, "--admin-token-file") {
		t.Errorf("have %s", have)
	}
	out.Reset()
	c = &serveCmd{AdminBind: "0.0.0.0", tokenSettings: tokenSettings{AdminToken: "t"}}
	if c.warn(slog.New(slog.NewTextHandler(&out, nil)), nil); out.Len() > 0 {
		t.Errorf("have %s", out.String())
	}
}
