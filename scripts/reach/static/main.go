// Command static is the static Go program of scripts/reach: it gets a URL.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
)

func main() {
	if err := get(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func get(url string) error {
	ask, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(ask) // #nosec G107 G704 -- that is what it is for
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	return nil
}
