#!/usr/bin/perl
# Writes the linker's version script for a shared library of OpenSSL, as its Makefile asks for it:
# mkdef.pl [--version V] --type lib --ordinals NUMFILE --name NAME --OS OS
#
# The package that delivers the source leaves the original out. A line of NUMFILE is
#   name  ordinal  version  EXIST:platform:FUNCTION:features
# Names that this build does not have are harmless: the GNU linker exports what is there.
use strict;
use warnings;
use Getopt::Long;

my %options;
GetOptions(\%options, 'version=s', 'type=s', 'ordinals=s', 'name=s', 'OS=s') or exit 2;
die "mkdef.pl: for the GNU linker only, not for $options{OS}\n" unless $options{OS} eq 'linux';

my %names;
open my $file, '<', $options{ordinals} or die "$options{ordinals}: $!\n";
while (<$file>) {
    next if /^\s*(#|$)/;
    my ($name, undef, $version, $info) = split;
    die "$options{ordinals}:$.: cannot be read\n" unless defined $info;
    $version =~ tr/_/./;
    push @{ $names{$version} }, $name if $info =~ /^EXIST:/;
}

sub by_number {
    my @a = split /\./, $a;
    my @b = split /\./, $b;
    return $a[0] <=> $b[0] || $a[1] <=> $b[1] || $a[2] <=> $b[2];
}

my ($earlier, $local) = ('', "    local: *;\n");
for my $version (sort by_number keys %names) {
    print "OPENSSL_$version {\n    global:\n";
    print "        $_;\n" for sort @{ $names{$version} };
    print "$local}$earlier;\n";
    ($earlier, $local) = (" OPENSSL_$version", '');
}
