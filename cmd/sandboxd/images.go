package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandboxd/sandboxd/gateway/admission"
	"github.com/sandboxd/sandboxd/sandbox/oci"
	"github.com/sandboxd/sandboxd/sandbox/session/text"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// keptImage is an image of sandboxes without an engine.
type keptImage struct {
	Name    string    `json:"name"`
	ID      string    `json:"id"`
	Size    int64     `json:"size"` // bytes; layers that images share count in each
	Created time.Time `json:"created,omitzero"`
}

// imageStore is where sandboxes without an engine have their images from. It needs Linux.
type imageStore interface {
	list() ([]keptImage, error)
	pull(ctx context.Context, name string, progress func(string)) (keptImage, error)
	load(ctx context.Context, file string) ([]keptImage, error)
	// remove removes names, and then the files that nothing needs.
	remove(ctx context.Context, names []string) error
}

// bundleImages is the command images.
type bundleImages struct{ *cli }

func (c bundleImages) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "images",
		Short: "list, get or remove the images of sandboxes without an engine",
		Long: "The images of sandboxes that run without a container engine (backend oci), which\n" +
			"are kept on this machine. With Docker, use its own commands: docker images.",
		Example: "  sandboxd images ls",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.list(), c.pull(), c.load(), c.remove())
	return cmd
}

// open opens the store of this machine's images.
func (c bundleImages) open(ctx context.Context) (imageStore, error) {
	if c.gateway != "" {
		return nil, usage("images works on the machine of the daemon", "run it there")
	}
	if err := needsLinux(); err != nil {
		return nil, err
	}
	if name := backendOf(c.config); name != oci.Name {
		return nil, &wire.Error{Code: wire.CodeUnavailable,
			Message: "the backend of this machine is " + name + ", which keeps its own images",
			Hint:    "see: docker images; or set backend: oci"}
	}
	if err := enterBundles(ctx, c.config); err != nil {
		return nil, err
	}
	return openImages(c.config)
}

func (c bundleImages) list() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls", Short: "list the images", Args: noArgs, Example: "  sandboxd images ls --json",
		Long: "List the images by name, with the size of their files. Layers that images share\n" +
			"count in each of them.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			all, err := s.list()
			if err != nil {
				return err
			}
			return printImages(all, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object per image")
	return cmd
}

func printImages(all []keptImage, asJSON bool) error {
	if asJSON {
		for _, img := range all {
			if err := text.WriteJSON(os.Stdout, img); err != nil {
				return err
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tSIZE\tID")
	for _, img := range all {
		fmt.Fprintf(t, "%s\t%s\t%.19s\n", img.Name, admission.Size(img.Size), img.ID)
	}
	return t.Flush()
}

func (c bundleImages) pull() *cobra.Command {
	return &cobra.Command{
		Use: "pull IMAGE", Short: "get an image from its registry, also if it is there",
		Example: "  sandboxd images pull debian:12", Args: oneArg("an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			img, err := s.pull(ctx, args[0], func(line string) { fmt.Fprintln(os.Stderr, line) })
			if err != nil {
				return err
			}
			return printImages([]keptImage{img}, false)
		},
	}
}

func (c bundleImages) load() *cobra.Command {
	return &cobra.Command{
		Use: "load FILE", Short: "get the images of a file that docker save made",
		Example: "  docker save ann/tools -o tools.tar      # on another machine\n" +
			"  sandboxd images load tools.tar",
		Args: oneArg("a file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			all, err := s.load(ctx, args[0])
			if err != nil {
				return err
			}
			return printImages(all, false)
		},
	}
}

func (c bundleImages) remove() *cobra.Command {
	return &cobra.Command{
		Use: "rm [IMAGE...]", Short: "remove images, and files that no image needs",
		Example: "  sandboxd images rm debian:12",
		Long: "Remove the names of images, and then the files that no image and no sandbox\n" +
			"needs. Sandboxes keep what they use. Without a name, only remove files. Other\n" +
			"daemons of the same user may have images in the same directory.",
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			return s.remove(cmd.Context(), args)
		},
	}
}

// oneArg requires one argument, described by what.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage(cmd.CommandPath()+" needs "+what, "see: "+cmd.CommandPath()+" --help")
		}
		return noArgs(cmd, args[1:])
	}
}
