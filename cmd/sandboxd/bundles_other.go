//go:build !linux

package main

import (
	"context"
	"log/slog"

	"github.com/sandboxd/sandboxd/cmd/sandboxd/config"
)

func runtimeOf(context.Context) (name, version string, err error) { return "", "", needsLinux() }

func enterBundles(context.Context, *config.Loaded) error { return needsLinux() }

func apart() bool { return false }

func openBundles(*config.Loaded, string, *slog.Logger) (bundles, error) { return nil, needsLinux() }

func hasBundleImage(*config.Loaded) (bool, error) { return false, needsLinux() }

func openImages(*config.Loaded) (imageStore, error) { return nil, needsLinux() }
