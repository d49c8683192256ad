package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	requestCount = 300
	eventCount   = 200
	eventEvery   = 10 * time.Millisecond
	validity     = 24 * time.Hour
)

// web serves HTTPS on port 443 of every address: a word at /, and events with their time, in
// nanoseconds, at /events.
func web(names []string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	self := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: names[0]},
		DNSNames: names, NotBefore: now.Add(-validity), NotAfter: now.Add(validity),
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, self, self, &key.PublicKey, key)
	if err != nil {
		return err
	}
	if err := pem.Encode(os.Stdout, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "served") // a client that left asks again
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(eventEvery)
		defer tick.Stop()
		for range eventCount {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
			fmt.Fprintf(w, "data: %d\n\n", time.Now().UnixNano())
			if http.NewResponseController(w).Flush() != nil {
				return
			}
		}
	})
	server := &http.Server{Addr: ":443", Handler: mux, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{
			{Certificate: [][]byte{der}, PrivateKey: key}}}}
	return server.ListenAndServeTLS("", "")
}

// get requests url, with the authorities of SSL_CERT_FILE, and passes the body on.
func get(url string, read func(io.Reader) error) error {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return read(resp.Body)
}

func requests(url string) error {
	for range requestCount {
		began := time.Now()
		err := get(url, func(body io.Reader) error {
			_, err := io.Copy(io.Discard, body)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Println(float64(time.Since(began).Microseconds()) / 1000)
	}
	return nil
}

// events relies on one clock for both ends.
func events(url string) error {
	return get(url, func(body io.Reader) error {
		lines := bufio.NewScanner(body)
		for lines.Scan() {
			sent, found := strings.CutPrefix(lines.Text(), "data: ")
			if !found {
				continue
			}
			at, err := strconv.ParseInt(sent, 10, 64)
			if err != nil {
				return err
			}
			fmt.Println(float64(time.Since(time.Unix(0, at)).Microseconds()) / 1000)
		}
		return lines.Err()
	})
}
