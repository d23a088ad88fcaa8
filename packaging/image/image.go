package main

import (
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// release is what the images are made of.
type release struct {
	version, commit, homepage string
	time                      time.Time
	licences                  string // directory
	programs                  []built
}

// built is a finished program of one architecture.
type built struct{ arch, path string }

// mediaTypes name the formats of an image's parts.
type mediaTypes struct{ manifest, config, layer types.MediaType }

var (
	oci    = mediaTypes{types.OCIManifestSchema1, types.OCIConfigJSON, types.OCILayer}
	docker = mediaTypes{types.DockerManifestSchema2, types.DockerConfigJSON, types.DockerLayer}
)

// config is what a container runs. A relay of this image puts its control socket below
// XDG_RUNTIME_DIR, where root's commands also look: /run/longhaul. There is no /tmp.
//
// The health check asks that socket. It fails while no relay answers, its event loops are
// stuck, or it drains. Limits and dead hops do not make a container unhealthy: those who
// restart unhealthy ones would end its flows and gain nothing.
func (r *release) config() v1.Config {
	return v1.Config{
		User:       userID + ":" + userID,
		Env:        []string{"PATH=/usr/bin", "XDG_RUNTIME_DIR=/run", "TMPDIR=/run"},
		Entrypoint: []string{programPath},
		Cmd:        []string{"relay", "--config", "/etc/longhaul/longhaul.yaml"},
		WorkingDir: "/",
		StopSignal: "SIGTERM",
		Labels:     r.labels(),
		Healthcheck: &v1.HealthConfig{
			Test:        []string{"CMD", programPath, "ready", "--ignore", "shedding,hops", "--timeout", "2s"},
			Interval:    10 * time.Second,
			Timeout:     5 * time.Second,
			StartPeriod: 5 * time.Second,
			Retries:     3,
		},
	}
}

// labels are those that the OCI image specification defines.
func (r *release) labels() map[string]string {
	all := map[string]string{
		"org.opencontainers.image.title":       "longhaul",
		"org.opencontainers.image.description": "relay that makes bulk TCP between far sites fill its link",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
		"org.opencontainers.image.created":     r.time.Format(time.RFC3339),
		"org.opencontainers.image.licenses":    "Apache-2.0",
	}
	if r.homepage != "" {
		all["org.opencontainers.image.url"] = r.homepage
	}
	return all
}

// tag is the version in the characters of tags.
func (r *release) tag() string {
	return regexp.MustCompile(`[^A-Za-z0-9_.-]`).ReplaceAllString(r.version, "-")
}

// image makes the image of one architecture.
func (r *release) image(p built, kind mediaTypes) (v1.Image, error) {
	layer, err := r.layer(p.path, kind.layer)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, kind.manifest), kind.config)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:     layer,
		MediaType: kind.layer,
		History:   v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "packaging/build " + p.arch},
	})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", p.arch
	file.Created = v1.Time{Time: r.time}
	file.Config = r.config()
	return mutate.ConfigFile(image, file)
}

// writeOCI writes the images of all architectures as a tar file of an OCI layout.
func (r *release) writeOCI(path string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range r.programs {
		image, err := r.image(p, oci)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: mutate.Annotations(image, r.labels()).(v1.Image),
			Descriptor: v1.Descriptor{
				Platform: &v1.Platform{OS: "linux", Architecture: p.arch},
			},
		})
	}
	index = mutate.Annotations(index, r.labels()).(v1.ImageIndex)

	dir, err := os.MkdirTemp("", "longhaul-oci-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// containerd and Docker take the image's name from the second one.
	err = all.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.tag(),
		"io.containerd.image.name":          "docker.io/library/longhaul:" + r.tag(),
	}))
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := r.tarDirectory(f, dir); err != nil {
		return err
	}
	return f.Close()
}

// writeDocker writes one architecture's image for `docker load`.
func (r *release) writeDocker(path string, p built) error {
	image, err := r.image(p, docker)
	if err != nil {
		return err
	}
	tag, err := name.NewTag("longhaul:" + r.tag())
	if err != nil {
		return err
	}
	return tarball.WriteToFile(filepath.Clean(path), tag, image)
}
