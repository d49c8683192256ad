// Image packs a directory as a container image of the daemon, for docker load and podman load. The
// same directory, version and time give the same bytes.
//
//	image -root DIR -arch amd64 -version 0.1.0 -time SECONDS FILE
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	root := flag.String("root", "", "`directory` that becomes the root of the image")
	arch := flag.String("arch", "amd64", "architecture of the programs")
	version := flag.String("version", "", "version of sandboxd, and the tag of the image")
	seconds := flag.Int64("time", 0, "time of the files and of the image, in seconds since 1970")
	flag.Parse()
	if *root == "" || *version == "" || flag.NArg() != 1 {
		fmt.Fprintln(
			os.Stderr, "usage: image -root DIR -version VERSION [-arch ARCH] [-time SECONDS] FILE")
		os.Exit(2)
	}
	if err := pack(*root, *arch, *version, time.Unix(*seconds, 0).UTC(), flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// pack writes the image with the files of root to file.
func pack(root, arch, version string, at time.Time, file string) error {
	files, err := archive(os.DirFS(root), at)
	if err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	})
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: arch,
		OS:           "linux",
		Created:      v1.Time{Time: at},
		RootFS:       rootFS(image),
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/sandboxd"},
			Cmd:        []string{"serve"},
			Env:        []string{"PATH=/usr/bin", "SANDBOXD_STATE=/var/lib/sandboxd-ssh"},
			Labels: map[string]string{
				"org.opencontainers.image.title":    "sandboxd",
				"org.opencontainers.image.version":  version,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return err
	}
	tag, err := name.NewTag("sandboxd/daemon:" + version)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, image)
}

// rootFS returns the layers of image, as its configuration lists them.
func rootFS(image v1.Image) v1.RootFS {
	config, err := image.ConfigFile()
	if err != nil {
		panic(err) // an image in memory has one
	}
	return config.RootFS
}

// archive returns the files of root as a tar archive: in order of their names, of root, with one
// time. /tmp is added, because the daemon needs it.
func archive(root fs.FS, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777,
		ModTime: at})
	if err != nil {
		return nil, err
	}
	err = fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(path), ModTime: at}
		header.Mode = int64(info.Mode().Perm())
		switch {
		case info.IsDir():
			header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
			return w.WriteHeader(header)
		case info.Mode().IsRegular():
			header.Typeflag, header.Size = tar.TypeReg, info.Size()
		default:
			return fmt.Errorf("%s: %s: only files and directories are packed", path,
				info.Mode().Type())
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		f, err := root.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
