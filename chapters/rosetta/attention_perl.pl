#!/usr/bin/env perl
# Multi-head attention in Perl with PDL, from nothing. PDL has neither gradients nor a layer of its own.
#
#     perl attention_perl.pl vectors.json
#
# PDL counts axes from the fastest: what the other programs call (batch, len, width) has the dims
# (width, len, batch). The heads are folded into the last of them, as in the sources of this course.

use strict;
use warnings;
use Config;
use JSON::PP;
use PDL;

# From nothing
# Softmax over the keys that a query may see; zeros where it may see none.
sub masked_softmax {
    my ($scores, $mask) = ($_[0]->copy, $_[1]);    # where() writes into its argument
    my $seen = $mask->maximum->dummy(0, $mask->dim(0));
    $scores->where($seen > $mask) .= -inf();
    $scores->where($seen == 0) .= 0;
    my $parts = exp($scores - $scores->maximum->dummy(0));
    return $parts / $parts->sumover->dummy(0) * $mask->convert($scores->type);
}

# 1 = may attend, dims (k_len, q_len, batch * num_heads).
sub build_mask {
    my ($k_len, $q_len, $folded, $valid_lens, $is_causal) = @_;
    my $mask = ones(long, $k_len, $q_len, $folded);
    # With a causal mask the last query sees every key.
    $mask *= ($mask->xvals <= $mask->yvals + ($k_len - $q_len)) if $is_causal;
    return defined $valid_lens ? $mask * ($mask->xvals < $valid_lens->dummy(0)) : $mask;
}

package MultiHeadAttention {    # project, split into heads, attend, merge
    sub new { my ($class, %args) = @_; return bless {%args}, $class }

    sub project {
        my ($self, $name, $x) = @_;
        my ($given, $bias) = ($self->{weights}, $self->{weights}{"$name.bias"});
        return $x x $given->{"$name.weight"}->transpose + ($bias // 0);
    }

    sub transpose_qkv {
        my ($self, $x) = @_;
        return $x->splitdim(0, $x->dim(0) / $self->{num_heads})->reorder(0, 2, 1, 3)->clump(2, 3);
    }

    sub transpose_output {
        my ($self, $x) = @_;
        return $x->splitdim(2, $self->{num_heads})->reorder(0, 2, 1, 3)->clump(0, 1);
    }

    sub forward {
        my ($self, $query, $key, $value, $valid_lens, $is_causal) = @_;
        my $q = $self->transpose_qkv($self->project('q_proj', $query));
        my $k = $self->transpose_qkv($self->project('k_proj', $key));
        my $v = $self->transpose_qkv($self->project('v_proj', $value));
        if (defined $valid_lens) {    # dims (batch) or (q_len, batch); each for all heads
            $valid_lens = $valid_lens->dummy(0) if $valid_lens->ndims == 1;
            $valid_lens = $valid_lens->dummy(1, $self->{num_heads})->clump(1, 2);
        }
        # A bare number would turn floats into doubles.
        my $scores = $q x $k->transpose / main::pdl($q->type, sqrt $q->dim(0));
        my $mask = main::build_mask($scores->dims, $valid_lens, $is_causal);
        my $weights = main::masked_softmax($scores, $mask);
        my $output = $self->project('out_proj', $self->transpose_output($weights x $v));
        return ($output, $weights->splitdim(2, $self->{num_heads}));
    }
}

# The program
my $file = shift // '';
refuse('usage: attention_perl.pl vectors.json') if $file eq '' or @ARGV;
my %results;
for my $case (@{ read_vectors($file) }) {
    for my $dtype ('float32', 'float64') {
        $results{ $case->{name} }{'from nothing'}{$dtype} = run($case, $dtype eq 'float32' ? \&float : \&double);
    }
}
my %versions = (perl => $Config{version}, PDL => $PDL::VERSION);
my %content = (framework => 'Perl with PDL', versions => \%versions, results => \%results);
print JSON::PP->new->canonical->encode(\%content), "\n";

sub run {
    my ($case, $as) = @_;
    my %weights = map { $_ => $as->($case->{weights}{$_}) } keys %{ $case->{weights} };
    my $layer = MultiHeadAttention->new(num_heads => $case->{num_heads}, weights => \%weights);
    my @inputs = map { $as->($case->{$_}) } qw(query key value);
    my ($output, $weights) = $layer->forward(@inputs, @$case{qw(valid_lens is_causal)});
    die "the layer computed in another type\n" if $output->type ne $inputs[0]->type;
    return { output => numbers($output->unpdl), weights => numbers($weights->unpdl) };
}

sub numbers {    # what JSON cannot write becomes null
    my ($value) = @_;
    return [map { numbers($_) } @$value] if ref $value;
    return $value == $value && abs($value) != 9**9**9 ? $value + 0 : undef;
}

sub refuse {
    print STDERR "@_\n";
    exit 2;
}

sub read_vectors {
    my ($path) = @_;
    open my $handle, '<', $path or refuse("$path: cannot be read: $!");
    local $/;
    my $content = eval { JSON::PP->new->utf8->decode(<$handle>) };
    refuse("$path: is not JSON: ", $@ =~ s/ at \S+ line.*//sr) if $@;
    my $format = 'attention vectors 1';
    refuse("$path: must be an object whose format is '$format'")
        if ref $content ne 'HASH' or ($content->{format} // '') ne $format;
    my $cases = $content->{cases};
    refuse("$path: cases must be a list with at least one case") if ref $cases ne 'ARRAY' or !@$cases;
    for my $number (0 .. $#$cases) {
        my $where = ref $cases->[$number] eq 'HASH' ? $cases->[$number]{name} // $number : $number;
        eval { check_case($cases->[$number]); 1 } or refuse("$path: case $where: $@" =~ s/\s+$//r);
    }
    return $cases;
}

sub check_case {    # every shape; lists become piddles
    my ($case) = @_;
    my @entries = sort qw(name num_heads query key value valid_lens is_causal weights upstream);
    die "the entries must be @entries\n" if ref $case ne 'HASH' or "@entries" ne join ' ', sort keys %$case;
    my %shape = map { $_ => [shape_of($_, $case->{$_})] } qw(query key value upstream);
    for my $name (qw(query key value upstream)) {
        my $rank = @{ $shape{$name} };
        die "$name must have 3 axes, got $rank\n" if $rank != 3;
    }
    my ($batch, $q_len, $width) = @{ $shape{query} };
    my $k_len = $shape{key}[1];
    must_be('key', $shape{key}, [$batch, $k_len, $shape{key}[2]]);
    must_be('value', $shape{value}, [$batch, $k_len, $shape{value}[2]]);
    must_be('upstream', $shape{upstream}, $shape{query});
    my $heads = ref $case->{num_heads} ? 'no number' : $case->{num_heads} // 'null';
    die "num_heads must divide the width $width, got $heads\n"
        unless $heads =~ /^[1-9]\d*$/ and int($width / $heads) * $heads == $width;
    die "is_causal must be true or false\n" if !JSON::PP::is_bool($case->{is_causal});
    if (defined(my $lens = $case->{valid_lens})) {
        my $got = join ', ', shape_of('valid_lens', $lens);
        die "valid_lens must be ($batch) or ($batch, $q_len), got ($got)\n"
            if $got ne $batch and $got ne "$batch, $q_len";
        my $piddle = pdl($lens);
        die "valid_lens must be integers in 0..$k_len\n"
            if any($piddle != rint($piddle)) or any($piddle < 0) or any($piddle > $k_len);
        $case->{valid_lens} = long($piddle);
    }
    my %wide = (q_proj => $width, k_proj => $shape{key}[2], v_proj => $shape{value}[2], out_proj => $width);
    my $weights = $case->{weights};
    my @names = map { "$_.weight" } sort keys %wide;
    my @both = sort @names, map { "$_.bias" } keys %wide;
    my $given = ref $weights eq 'HASH' ? join ' ', sort keys %$weights : '';
    die "weights must be @names, with or without biases\n" if $given ne "@names" and $given ne "@both";
    for my $name (sort keys %$weights) {
        my ($projection, $kind) = split /\./, $name;
        must_be($name, [shape_of($name, $weights->{$name})], $kind eq 'bias' ? [$width] : [$width, $wide{$projection}]);
        $weights->{$name} = pdl($weights->{$name});
    }
    $case->{$_} = pdl($case->{$_}) for qw(query key value);
}

sub shape_of {    # of nested lists of numbers, all of equal length
    my ($name, $value) = @_;
    if (!ref $value) {
        my $is_number = defined $value && $value =~ /^-?\d+(\.\d+)?([eE][-+]?\d+)?$/;
        die "$name must hold finite numbers\n" if !$is_number;
        return ();
    }
    die "$name must hold numbers in lists of equal length\n" if ref $value ne 'ARRAY' or !@$value;
    my @shapes = map { join ' ', shape_of($name, $_) } @$value;
    die "$name must hold numbers in lists of equal length\n" if grep { $_ ne $shapes[0] } @shapes;
    return (scalar @$value, split / /, $shapes[0]);
}

sub must_be {
    my ($name, $got, $wanted) = @_;
    my ($is, $should) = map { join ', ', @$_ } $got, $wanted;
    die "$name must be ($should), got ($is)\n" if $is ne $should;
}
