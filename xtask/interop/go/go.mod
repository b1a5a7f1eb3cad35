module mmtls/interop

go 1.25
