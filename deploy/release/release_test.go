package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

const root = "../.."

var (
	once    sync.Once
	made    release
	madeErr error
)

// buildTrial makes a snapshot for this machine, once for all tests.
func buildTrial(t *testing.T) release {
	t.Helper()
	once.Do(func() {
		var dir string
		dir, madeErr = os.MkdirTemp("", "rlnode-release-test-*")
		if madeErr != nil {
			return
		}
		made = release{version: "v0.1.0-rc.1", root: root, out: filepath.Join(dir, "a"),
			snapshot: true, platforms: []platform{{"linux", "amd64"}}, work: dir}
		madeErr = made.buildAll(context.Background())
	})
	if madeErr != nil {
		t.Fatal(madeErr)
	}
	return made
}

func TestMain(m *testing.M) {
	code := m.Run()
	if made.out != "" {
		os.RemoveAll(filepath.Dir(made.out))
	}
	os.Exit(code)
}

func TestRelease(t *testing.T) {
	t.Parallel()
	r := buildTrial(t)
	var have []string
	entries, err := os.ReadDir(r.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		have = append(have, e.Name())
	}
	want := []string{
		"SHA256SUMS", "rlnode-0.1.0-rc.1.tgz", "rlnode-0.1.0~rc.1-1.x86_64.rpm",
		"rlnode-alerts.yaml", "rlnode-board.json",
		"rlnode_0.1.0-rc.1_linux_amd64.cdx.json", "rlnode_0.1.0-rc.1_linux_amd64.tar.gz", "rlnode_0.1.0~rc.1_amd64.deb",
	}
	if !slices.Equal(have, want) {
		t.Errorf("files:\nhave %v\nwant %v", have, want)
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = r.out
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), "OK") != len(want)-1 {
		t.Errorf("checksums: %v\n%s", err, out)
	}

	again := r
	again.out = filepath.Join(filepath.Dir(r.out), "b")
	if err := again.buildAll(context.Background()); err != nil {
		t.Fatal(err)
	}
	if first, second := read(t, r.out+"/SHA256SUMS"), read(t, again.out+"/SHA256SUMS"); first != second {
		t.Errorf("the same commit gave different bytes:\n%s\n%s", first, second)
	}

	c, err := loader.Load(r.out + "/rlnode-0.1.0-rc.1.tgz")
	if err != nil {
		t.Fatal(err)
	}
	if c.Metadata.Version != "0.1.0-rc.1" || c.Metadata.AppVersion != "0.1.0-rc.1" {
		t.Errorf("the chart's versions: %s, %s", c.Metadata.Version, c.Metadata.AppVersion)
	}
}

// The archive has a static binary that knows its version, and the list has the binary's modules.
func TestArchive(t *testing.T) {
	t.Parallel()
	r := buildTrial(t)
	name := r.name(r.platforms[0])
	dir := t.TempDir()
	files := unpack(t, filepath.Join(r.out, name+".tar.gz"), dir)
	want := []string{"CHANGELOG.md", "README.md", "SECURITY.md", "rlnode", "rlnode.service",
		"rlnode.yaml", "rules.yaml"}
	if !slices.Equal(files, want) {
		t.Errorf("files: have %v, want %v", files, want)
	}
	binary := filepath.Join(dir, name, "rlnode")
	program, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if slices.ContainsFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		t.Error("the binary is not static")
	}
	out, err := exec.Command(binary, "version").Output()
	if line := regexp.MustCompile(`^rlnode v0\.1\.0-rc\.1, commit [0-9a-f]{12} \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, go1\S+ linux/amd64\n$`); err != nil || !line.Match(out) {
		t.Errorf("version: %v %q, want %v", err, out, line)
	}
	var version struct{ Version, Revision, Date string }
	if out, err = exec.Command(binary, "version", "--json").Output(); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out, &version); err != nil || version.Version != r.version || len(version.Revision) != 40 {
		t.Errorf("version: %v %s", err, out)
	}

	var bom cyclonedx.BOM
	list := read(t, filepath.Join(r.out, name+".cdx.json"))
	if err := cyclonedx.NewBOMDecoder(strings.NewReader(list), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{"std", "go.etcd.io/bbolt", "github.com/hashicorp/raft",
		"github.com/hashicorp/memberlist"} {
		if !slices.ContainsFunc(*bom.Components,
			func(c cyclonedx.Component) bool { return c.Name == module && c.Version != "" && c.PackageURL != "" }) {
			t.Errorf("the list lacks %s", module)
		}
	}
}

// The command refuses to make a release of anything else than a tagged commit.
func TestReleaseRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git",
			append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.org", "-c",
				"commit.gpgsign=false"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "one")
	refuses := func(version, want string) {
		t.Helper()
		r := release{version: version, root: dir, out: filepath.Join(dir, "out")}
		if err := r.buildAll(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: have %v, want an error that says %q", version, err, want)
		}
	}
	refuses("1.2.3", "-version")
	refuses("v1.2", "-version")
	refuses("v1.2.3", "does not have the tag v1.2.3")
	git("tag", "v1.2.3")
	if err := os.WriteFile(filepath.Join(dir, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	refuses("v1.2.3", "uncommitted changes")
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// unpack unpacks an archive and returns the names of its files without their folder.
func unpack(t *testing.T, path, dir string) (names []string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zipped, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	in := tar.NewReader(zipped)
	for {
		h, err := in.Next()
		if err == io.EOF {
			slices.Sort(names)
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, os.FileMode(h.Mode)); err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.Base(h.Name))
	}
}

// unitSetting returns a setting in the unit file.
func unitSetting(t *testing.T, key string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + key + `=(.*)$`).FindStringSubmatch(read(t, root+"/deploy/systemd/rlnode.service"))
	if m == nil {
		t.Fatalf("the unit has no %s", key)
	}
	return m[1]
}

// inTestRoot runs a script in a copy of this machine's root. Writes go to a
// separate layer, and there is no network but loopback. The package is at
// /package.
func inTestRoot(t *testing.T, packageFile, script string) {
	t.Helper()
	if os.Getuid() != 0 || exec.Command("unshare", "--mount", "--net", "true").Run() != nil {
		t.Skip("the test root needs root and namespaces")
	}
	work := t.TempDir()
	outer := fmt.Sprintf(`set -e
cd %[1]s
mkdir layer root
mount -t tmpfs tmpfs layer
mkdir layer/upper layer/work
mount -t overlay overlay -o lowerdir=/,upperdir=layer/upper,workdir=layer/work root
mount -t proc proc root/proc
mount --bind /dev root/dev
cp %[2]s root/package
ip link set lo up
chroot root sh -ec "$SCRIPT"
cd layer/upper
if left=$(find . -name '*rlnode*' -not -path './tmp/*' -not -path './var/log/*' -not -path './var/lib/dpkg/*' -not -type c); [ -n "$left" ]; then
	echo "left behind: $left"
	exit 1
fi
`, work, packageFile)
	cmd := exec.Command("unshare", "--mount", "--net", "sh", "-c", outer)
	cmd.Env = append(os.Environ(), "SCRIPT="+script, "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else {
		t.Logf("%s", out)
	}
}

// serveScript returns the part of a script that starts the unit's command line
// as its user, asks the node, and stops it.
func serveScript(t *testing.T) string {
	return fmt.Sprintf(`
test "$(stat -c %%U:%%G:%%a /var/lib/rlnode)" = rlnode:rlnode:700
test "$(stat -c %%U:%%G:%%a /etc/rlnode)" = root:rlnode:750
rlnode version
cd /var/lib/rlnode
setpriv --reuid=%[1]s --regid=%[2]s --clear-groups --no-new-privs --bounding-set=-all %[3]s &
node=$!
tries=0
until rlnode health; do
	kill -0 $node
	tries=$((tries + 1)); test $tries -lt 300
	sleep 0.2
done
rlnode check --attr ip=198.51.100.7
kill -TERM $node
wait $node
test -s /var/lib/rlnode/counters.db
cd /
`, unitSetting(t, "User"), unitSetting(t, "Group"), unitSetting(t, "ExecStart"))
}

// The package for Debian installs, and its service's command line serves.
// Removing it leaves data and settings; purging it leaves nothing.
func TestDeb(t *testing.T) {
	t.Parallel()
	r := buildTrial(t)
	inTestRoot(t, filepath.Join(r.out, "rlnode_0.1.0~rc.1_amd64.deb"), `
cp /package /tmp/rlnode.deb
dpkg --install /tmp/rlnode.deb | grep -q 'systemctl enable --now rlnode'
`+serveScript(t)+`
echo '# mine' >> /etc/rlnode/rlnode.yaml
dpkg --install /tmp/rlnode.deb
grep -q '# mine' /etc/rlnode/rlnode.yaml
dpkg --remove rlnode
test ! -e /usr/bin/rlnode
test ! -e /usr/lib/systemd/system/rlnode.service
test -s /etc/rlnode/rlnode.yaml
test -s /var/lib/rlnode/counters.db
dpkg --purge rlnode
test ! -e /etc/rlnode
test ! -e /var/lib/rlnode
if getent passwd rlnode || dpkg --status rlnode; then exit 1; fi
`)
}

// The package for Red Hat does the same, with the tools of Debian's package rpm.
func TestRPM(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("rpm"); err != nil && os.Getenv("CI") == "" {
		t.Skip("rpm is not installed")
	}
	r := buildTrial(t)
	inTestRoot(t, filepath.Join(r.out, "rlnode-0.1.0~rc.1-1.x86_64.rpm"), `
cp /package /tmp/rlnode.rpm
export HOME=/tmp
rpm --install --nodeps /tmp/rlnode.rpm
`+serveScript(t)+`
rpm --query --list rlnode
rpm --erase --nodeps rlnode
test ! -e /usr/bin/rlnode
test ! -e /usr/lib/systemd/system/rlnode.service
test -s /var/lib/rlnode/counters.db
rm -r /var/lib/rlnode
rm -rf /etc/rlnode
`)
}

// systemd accepts the unit and rates its privileges as low.
func TestUnit(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("systemd-analyze is not installed")
	}
	// verify requires that the program exists.
	dir := t.TempDir()
	unit := strings.ReplaceAll(read(t, root+"/deploy/systemd/rlnode.service"), "/usr/bin/rlnode", "/bin/true")
	if err := os.WriteFile(dir+"/rlnode.service", []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no",
		dir+"/rlnode.service").CombinedOutput(); err != nil || strings.Contains(string(out),
		"rlnode.service:") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := exec.Command(analyze, "security", "--offline=yes", "--threshold=20",
		dir+"/rlnode.service").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
