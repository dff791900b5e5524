package main

import (
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// Files that other users may read or write are named with their modes, and
// refused with --strict-files.
func TestLooseFiles(t *testing.T) {
	clearEnv(t)
	if runtime.GOOS == "windows" {
		t.Skip("its modes say nothing")
	}
	dir := t.TempDir()
	make := func(name string, mode fs.FileMode) string {
		path := filepath.Join(dir, name)
		text := "log-level: info"
		if name == "secret-config" {
			text = "admin-token: t"
		}
		expect.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		expect.NoError(t, os.Chmod(path, mode))
		return path
	}
	data := filepath.Join(dir, "data")
	expect.NoError(t, os.Mkdir(data, 0o700))
	for _, tt := range []struct {
		flag string
		mode fs.FileMode
		want string // empty: nothing is wrong
	}{
		{"cluster-secret-file", 0o666, "0666"}, {"cluster-secret-file", 0o644, "0644"},
		{"cluster-secret-file", 0o620, "0620"},
		{"cluster-secret-file", 0o600, ""}, {"cluster-secret-file", 0o440, ""}, {"cluster-secret-file", 0o400, ""},
		{"http-key", 0o644, "0644"}, {"admin-token-file", 0o604, "0604"}, {"api-token-file", 0o666, "0666"},
		{"tokens-file", 0o644, ""}, {"tokens-file", 0o664, "0664"}, {"tokens-file", 0o646, "0646"},
		{"http-cert", 0o644, ""},
		{"config", 0o644, ""}, {"config", 0o664, "0664"},
		{"secret-config", 0o644, "0644"}, {"secret-config", 0o640, ""},
		{"data-dir", 0o777, "0777"}, {"data-dir", 0o755, ""}, {"data-dir", 0o770, ""}, {"data-dir", 0o700, ""},
	} {
		path := data
		if tt.flag == "data-dir" {
			expect.NoError(t, os.Chmod(data, tt.mode))
		} else {
			path = make(tt.flag, tt.mode)
		}
		for _, strict := range []bool{false, true} {
			args := []string{"--" + strings.TrimPrefix(tt.flag, "secret-"), path}
			if strict {
				args = append(args, "--strict-files")
			}
			c, err := parseServe(args...)
			expect.NoError(t, err)
			var log strings.Builder
			err = c.checkFiles(slog.New(slog.NewTextHandler(&log, nil)))
			got := log.String()
			if err != nil {
				got += err.Error()
			}
			if (err != nil) != (strict && tt.want != "") {
				t.Errorf("%s of %04o, strict %v: got %v", tt.flag, tt.mode, strict, err)
			}
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) || tt.want != "" &&
				!strings.Contains(got, path) {
				t.Errorf("%s of %04o, strict %v: got %q, want the file and %q", tt.flag, tt.mode, strict, got, tt.want)
			}
		}
	}
}

func TestCgroupLimit(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(root, name)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		expect.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	put("a/b/memory.max", "max\n")
	put("a/memory.max", "536870912\n")
	put("memory/x/memory.limit_in_bytes", "268435456\n")
	put("memory/memory.limit_in_bytes", "9223372036854771712\n")
	for list, want := range map[string]int64{
		"0::/a/b\n":                        512 << 20,
		"0::/a\n":                          512 << 20,
		"0::/\n":                           math.MaxInt64,
		"0::/nowhere\n":                    math.MaxInt64,
		"5:memory:/x\n4:cpu:/y\n":          256 << 20,
		"5:memory:/x\n0::/a/b\n":           256 << 20,
		"5:memory:/\n1:name=systemd:/\n\n": math.MaxInt64,
		"rubbish":                          math.MaxInt64,
	} {
		expect.Equal(t, cgroupLimit(put("list", list), root), want, "%q", list)
	}
	expect.Equal(t, cgroupLimit(filepath.Join(root, "no list"), root), math.MaxInt64, "without a list")
}
