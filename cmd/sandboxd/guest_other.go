//go:build !linux

package main

// runAsGuest does nothing: a guest is a program for Linux.
func runAsGuest([]string) {}
