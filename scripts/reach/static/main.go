// Command static is the static Go program of scripts/reach: it gets a URL.
package main

import (
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
	answer, err := http.Get(url) // #nosec G107 G704 -- that is what it is for
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	return nil
}
