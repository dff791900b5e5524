package main

import (
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
)

// writeChart writes the chart like `helm package`, with the release's version
// for itself and the image.
func (r *release) writeChart() error {
	c, err := loader.LoadDir(r.path("deploy/helm/rlnode"))
	if err != nil {
		return err
	}

	c.Metadata.Version, c.Metadata.AppVersion = r.number(), r.number()
	c.ModTime, c.SchemaModTime = r.date, r.date

	for _, f := range c.Raw {
		f.ModTime = r.date
	}

	for _, f := range c.Templates {
		f.ModTime = r.date
	}

	for _, f := range c.Files {
		f.ModTime = r.date
	}

	_, err = util.Save(c, r.out)
	return err
}
