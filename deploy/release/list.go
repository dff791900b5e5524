package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// writeModuleList writes a CycloneDX list of the modules in a binary, as the
// binary itself names them.
func (r *release) writeModuleList(p platform, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}

	product := cyclonedx.Component{
		BOMRef: "pkg:golang/" + info.Main.Path + "@" + r.version, Type: cyclonedx.ComponentTypeApplication,
		Name: info.Main.Path, Version: r.version, PackageURL: "pkg:golang/" + info.Main.Path + "@" + r.version,
	}
	components := []cyclonedx.Component{{
		BOMRef: "pkg:golang/std@" + info.GoVersion, Type: cyclonedx.ComponentTypeLibrary,
		Name: "std", Version: info.GoVersion,
		PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go"),
	}}
	for _, m := range modules(info) {
		url := "pkg:golang/" + m.Path + "@" + m.Version
		c := cyclonedx.Component{BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: m.Path,
			Version: m.Version, PackageURL: url}
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) > 0 {
			c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		}
		components = append(components, c)
	}

	var refs []string
	for _, c := range components {
		refs = append(refs, c.BOMRef)
	}

	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.date.Format(time.RFC3339), Component: &product}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: product.BOMRef, Dependencies: &refs}}
	f, err := os.Create(filepath.Join(r.out, r.name(p)+".cdx.json"))
	if err != nil {
		return err
	}

	defer f.Close()

	if err := cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}

	return f.Close()
}
