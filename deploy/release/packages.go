package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers deb
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers rpm
)

// writePackages writes packages for Debian, Red Hat and their derivatives.
func (r *release) writePackages(p platform, binary string) error {
	for _, format := range []string{"deb", "rpm"} {
		packager, err := nfpm.Get(format)
		if err != nil {
			return err
		}

		info := nfpm.WithDefaults(r.packageInfo(p, binary, format))
		if err := nfpm.PrepareForPackager(info, format); err != nil {
			return err
		}

		f, err := os.Create(filepath.Join(r.out, packager.ConventionalFileName(info)))
		if err != nil {
			return err
		}

		defer f.Close()

		if err := packager.Package(info, f); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		if err := f.Close(); err != nil {
			return err
		}
	}

	return nil
}

func (r *release) packageInfo(p platform, binary, format string) *nfpm.Info {
	file := func(from, to, kind string, mode os.FileMode) *files.Content {
		return &files.Content{Source: from, Destination: to, Type: kind,
			FileInfo: &files.ContentFileInfo{Mode: mode, MTime: r.date, Owner: "root", Group: "root"}}
	}
	contents := files.Contents{
		file(binary, "/usr/bin/rlnode", files.TypeFile, 0o755),
		file(r.path("deploy/systemd/rlnode.service"), "/usr/lib/systemd/system/rlnode.service", files.TypeFile, 0o644),
		file("", "/etc/rlnode", files.TypeDir, 0o750),
		file(r.path("deploy/systemd/rlnode.yaml"), "/etc/rlnode/rlnode.yaml", files.TypeConfigNoReplace, 0o644),
		file("", "/usr/share/doc/rlnode", files.TypeDir, 0o755),
		file(r.path("README.md"), "/usr/share/doc/rlnode/README.md", files.TypeFile, 0o644),
		file(r.path("CHANGELOG.md"), "/usr/share/doc/rlnode/CHANGELOG.md", files.TypeFile, 0o644),
		file(r.path("deploy/compose/rules.yaml"), "/usr/share/doc/rlnode/rules.yaml", files.TypeFile, 0o644),
	}
	user := "passwd" // the package that has useradd
	if format == "rpm" {
		user = "shadow-utils"
	}

	info := &nfpm.Info{
		Name: "rlnode", Arch: p.arch, Platform: p.system, Version: r.version, Section: "net", Priority: "optional",
		Maintainer: "The rlnode project", Homepage: "https://github.com/rlnode/rlnode", MTime: r.date,
		Description: "A rate limiter that is a cluster of equal nodes\nGateways, middlewares and language-model proxies ask it whether a request may happen now.",
		Overridables: nfpm.Overridables{
			Depends: []string{user}, Contents: contents,
			Scripts: nfpm.Scripts{
				PostInstall: r.path("deploy/systemd/postinst.sh"),
				PreRemove:   r.path("deploy/systemd/prerm.sh"),
				PostRemove:  r.path("deploy/systemd/postrm.sh"),
			},
		},
	}
	info.RPM.BuildHost = "localhost" // instead of this machine's name
	return info
}
