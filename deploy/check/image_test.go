package check

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// image is the result of the Dockerfile.
type image struct {
	dir string // its root
	env []string
	cmd []string // after the entry point, /rlnode
	uid int
}

var (
	imageOnce sync.Once
	theImage  *image

	scratchMu sync.Mutex
	scratch   []string // folders to remove at the end; guarded by scratchMu
)

// removeAtEnd registers a folder for removal at the end.
func removeAtEnd(dir string) string {
	scratchMu.Lock()
	defer scratchMu.Unlock()
	scratch = append(scratch, dir)
	return dir
}

// buildImage executes the Dockerfile's steps without a container engine, once
// for all tests. In place of the base image with Go, it uses the machine's own
// root below a layer for writes.
func buildImage(t *testing.T) *image {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("building the image needs root")
	}
	if exec.Command("unshare", "--mount", "true").Run() != nil {
		t.Skip("mount namespaces are not available")
	}
	imageOnce.Do(func() { theImage = runDockerfile(t) })
	if theImage == nil {
		t.Fatal("building the image failed")
	}
	return theImage
}

func runDockerfile(t *testing.T) *image {
	text, err := os.ReadFile(root + "/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) != 2 || !strings.HasPrefix(stages[0].BaseName, "golang:") || stages[1].BaseName != "scratch" {
		t.Fatalf("%d stages, want one from golang: and one from scratch", len(stages))
	}
	work, err := os.MkdirTemp("", "rlnode-image-*") // TestMain removes it
	if err != nil {
		t.Fatal(err)
	}
	removeAtEnd(work)
	context := buildContext(t, work)

	// The first stage is a script. Each step runs in the root that the earlier steps left.
	var script strings.Builder
	step := func(format string, args ...any) { fmt.Fprintf(&script, format+"\n", args...) }
	step("set -e\nmount -t tmpfs tmpfs %[1]s/layer\nmkdir %[1]s/layer/upper %[1]s/layer/work", work)
	step("mount -t overlay overlay -o lowerdir=/,upperdir=%[1]s/layer/upper,workdir=%[1]s/layer/work %[1]s/root", work)
	step("mount -t proc proc %[1]s/root/proc; mount --bind /dev %[1]s/root/dev", work)
	folder := "/"
	for _, command := range stages[0].Commands {
		switch c := command.(type) {
		case *instructions.WorkdirCommand:
			folder = c.Path
			step("mkdir -p %s/root%s", work, folder)
		case *instructions.CopyCommand:
			for _, from := range c.SourcePaths {
				step("cp -a %s/%s %s/root%s/", context, from, work, filepath.Join(folder, c.DestPath))
			}
		case *instructions.RunCommand:
			// expands the mounts, too
			if err := c.Expand(func(word string) (string, error) { return word, nil }); err != nil {
				t.Fatal(err)
			}
			for _, m := range instructions.GetMounts(c) {
				step("mkdir -p %[1]s/root%[2]s; mount --bind %[3]s %[1]s/root%[2]s", work, m.Target,
					cacheFor(t, m.Target))
			}
			step("chroot %s/root sh -ec %s", work, quote("cd "+folder+"; "+c.CmdLine[0]))
		case *instructions.ArgCommand: // all have their default, which is empty
		default:
			t.Fatalf("the test does not support %s", command.Name())
		}
	}
	// The second stage copies files from the first.
	made := &image{dir: work + "/image"}
	for _, command := range stages[1].Commands {
		switch c := command.(type) {
		case *instructions.CopyCommand:
			step("mkdir -p %s/image%s; cp -rLT %s/root%s %s/image%s", work,
				filepath.Dir(c.DestPath), work, c.SourcePaths[0], work, c.DestPath)
			if c.Chown != "" {
				step("chown -R %s %s/image%s", c.Chown, work, c.DestPath)
			}
		case *instructions.EnvCommand:
			for _, e := range c.Env {
				made.env = append(made.env, e.Key+"="+e.Value)
			}
		case *instructions.UserCommand:
			user, _, _ := strings.Cut(c.User, ":")
			if made.uid, err = strconv.Atoi(user); err != nil {
				t.Fatal(err)
			}
		case *instructions.CmdCommand:
			made.cmd = c.CmdLine
		case *instructions.EntrypointCommand:
			if !slices.Equal(c.CmdLine, []string{"/rlnode"}) {
				t.Fatalf("entry point %q", c.CmdLine)
			}
		}
	}
	for _, dir := range []string{"layer", "root", "image"} {
		if err := os.Mkdir(filepath.Join(work, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("unshare", "--mount", "sh", "-c", script.String())
	build.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=/root", "GOPATH=/go", "GOCACHE=/root/.cache/go-build", "GOTOOLCHAIN=local",
		"GOPROXY=" + goEnv(t, "GOPROXY"), "GONOSUMDB=" + goEnv(t, "GONOSUMDB"), "GOSUMDB=" + goEnv(t, "GOSUMDB"),
	}
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the Dockerfile's steps: %v\n%s\n%s", err, script.String(), out)
	}
	return made
}

// buildContext copies the files that Docker would get from a fresh clone.
func buildContext(t *testing.T, work string) string {
	t.Helper()
	file, err := os.Open(root + "/.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	patterns, err := ignorefile.ReadAll(file)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	context := filepath.Join(work, "context")
	for _, name := range strings.Split(strings.Trim(string(names), "\x00"), "\x00") {
		skip, err := ignored.MatchesOrParentMatches(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if skip || os.IsNotExist(err) { // removed, but not committed yet
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(context, name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return context
}

// cacheFor returns this machine's folder for a cache of the build.
func cacheFor(t *testing.T, target string) string {
	t.Helper()
	switch target {
	case "/go/pkg/mod":
		return goEnv(t, "GOMODCACHE")
	case "/root/.cache/go-build":
		return goEnv(t, "GOCACHE")
	}
	t.Fatalf("the test does not support the cache %s", target)
	return ""
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// The image has the binary, certificates and an empty data folder of the node's
// user, and works without settings.
func TestImage(t *testing.T) {
	t.Parallel()
	made := buildImage(t)
	var have []string
	err := filepath.WalkDir(made.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (!d.IsDir() || d.Name() == "data") {
			have = append(have, strings.TrimPrefix(path, made.dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"/data", "/etc/ssl/certs/ca-certificates.crt", "/rlnode"}; !slices.Equal(have, want) {
		t.Errorf("the image has %v, want %v", have, want)
	}
	n := newNetwork(t)
	node := n.start(made.container(made.cmd...))
	eventually(t, "the node's health check says that it is ready", func() bool {
		select {
		case <-node.ended:
			t.Fatal("the node ended")
		default:
		}
		_, err := node.exec("health")
		return err == nil
	})
	if out, err := n.runOnHost("curl", "-sS", "-d", `{"attributes": {"ip": "198.51.100.7"}}`,
		"http://10.77.0.2:8080/v1/check"); err != nil || !strings.Contains(out, `"allowed":true`) {
		t.Errorf("a check from outside: %v %s", err, out)
	}
	node.stop(t)
}

// container returns a container of the image, with a volume for its data.
func (i *image) container(args ...string) *container {
	data, err := os.MkdirTemp("", "rlnode-volume-*")
	if err != nil {
		panic(err)
	}
	removeAtEnd(data)
	if err := os.Chown(data, i.uid, i.uid); err != nil {
		panic(err)
	}
	return &container{image: i.dir, data: data, env: slices.Clone(i.env), args: args, uid: i.uid}
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range scratch {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}
