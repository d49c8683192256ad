//go:build !linux

package main

// The probe runs in a container, so on Linux.

func vsockOpens() bool { return false }

func ringOpens() bool { return false }
