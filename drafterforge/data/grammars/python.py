"""Python prompts: a function, class, script or idea, asked as code to write, explain, test or fix."""

# Templates and word lists keep one entry a line.
# ruff: noqa: E501

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from drafterforge.data.grammars.base import Writer, an, capital, fill, lines, phrased, singular

# signature: what it does, in the imperative.
FUNCTIONS = lines("""
count_vowels(text): Count the vowels in a string.
is_palindrome(text): Check whether a string reads the same in both directions, ignoring case and spaces.
reverse_words(sentence): Reverse the order of the words in a sentence.
most_common_word(text): Find the word that occurs most often in a text.
title_case(text): Capitalize the first letter of every word except short ones such as "of" and "the".
remove_punctuation(text): Remove all punctuation from a string.
count_characters(text): Count how often each character occurs in a string.
are_anagrams(first, second): Check whether two strings are anagrams of each other.
caesar_cipher(text, shift): Encrypt a string with a Caesar cipher.
run_length_encode(text): Compress a string by run-length encoding, so that "aaab" becomes "a3b1".
longest_word(sentence): Find the longest word in a sentence.
snake_to_camel(name): Convert a snake_case name to camelCase.
camel_to_snake(name): Convert a camelCase name to snake_case.
truncate(text, length): Cut a string to a given length and add an ellipsis if anything was cut.
word_lengths(sentence): Map each word of a sentence to its length.
first_unique_character(text): Find the first character that occurs only once in a string.
is_pangram(sentence): Check whether a sentence contains every letter of the alphabet.
hamming_distance(first, second): Count the positions at which two strings of equal length differ.
edit_distance(first, second): Compute the Levenshtein distance between two strings.
longest_common_prefix(words): Find the longest prefix shared by all strings of a list.
wrap_text(text, width): Break a text into lines of at most a given width without cutting words.
slugify(title): Turn an article title into a URL slug.
mask_card_number(number): Replace all but the last four digits of a card number by stars.
initials(full_name): Return the initials of a full name in upper case.
count_sentences(text): Count the sentences in a paragraph.
pig_latin(sentence): Translate a sentence into Pig Latin.
remove_duplicate_words(sentence): Remove repeated words from a sentence but keep the order.
swap_case(text): Swap upper and lower case letters without using str.swapcase.
is_valid_isbn(code): Check whether a string is a valid ISBN-10.
to_morse(text): Translate a text into Morse code.
from_morse(code): Translate Morse code back into text.
center_text(text, width): Center a text in a line of a given width with stars on both sides.
rotate_string(text, count): Rotate the characters of a string to the left by a given count.
is_subsequence(short, long): Check whether one string is a subsequence of another.
longest_substring_without_repeats(text): Find the length of the longest substring without repeated characters.
parse_query_string(query): Parse a URL query string into a dictionary.
parse_key_values(text): Parse lines of the form "key = value" into a dictionary.
format_phone_number(digits): Format ten digits as a phone number such as (555) 123-4567.
format_table(rows): Format a list of rows as an aligned plain text table.
human_readable_size(num_bytes): Format a number of bytes as KB, MB or GB.
flatten(nested): Flatten a list that may contain lists at any depth.
chunk(items, size): Split a list into chunks of a given size.
remove_duplicates(items): Remove duplicates from a list while keeping the order.
rotate_list(items, steps): Rotate a list to the right by a number of steps.
second_largest(numbers): Find the second largest distinct number in a list.
moving_average(numbers, window): Compute the moving average of a list of numbers.
running_total(numbers): Return the list of running totals of a list of numbers.
two_sum(numbers, target): Find the indices of two numbers that add up to a target.
three_sum(numbers): Find all unique triples of numbers in a list that add up to zero.
max_subarray_sum(numbers): Find the largest sum of a contiguous part of a list.
merge_sorted(first, second): Merge two sorted lists into one sorted list without calling sorted.
binary_search(items, target): Find the index of a value in a sorted list by binary search.
bubble_sort(items): Sort a list with bubble sort.
insertion_sort(items): Sort a list with insertion sort.
quick_sort(items): Sort a list with quicksort.
merge_sort(items): Sort a list with merge sort.
counting_sort(numbers, limit): Sort small non-negative integers with counting sort.
heap_sort(items): Sort a list with a heap.
find_missing_number(numbers): Find the missing number in a list that should hold 1 to n.
majority_element(items): Find the element that makes up more than half of a list.
intersection(first, second): Return the common elements of two lists without duplicates.
difference(first, second): Return the elements of the first list that are not in the second.
zip_longest_with(first, second, default): Pair the elements of two lists, filling the shorter one with a default.
transpose(matrix): Transpose a matrix given as a list of lists.
rotate_matrix(matrix): Rotate a square matrix by 90 degrees clockwise.
multiply_matrices(left, right): Multiply two matrices given as lists of lists.
spiral_order(matrix): Return the elements of a matrix in spiral order.
diagonal_sum(matrix): Sum both diagonals of a square matrix without counting the center twice.
partition(items, predicate): Split a list into the items that satisfy a predicate and those that do not.
group_by_length(words): Group words by their length in a dictionary.
find_peaks(numbers): Return the indices of numbers that are larger than both neighbours.
is_sorted(items): Check whether a list is sorted in ascending order.
longest_increasing_subsequence(numbers): Compute the length of the longest increasing subsequence.
product_except_self(numbers): Return a list in which each entry is the product of all other entries.
move_zeros(numbers): Move all zeros to the end of a list, keeping the order of the rest.
interleave(first, second): Interleave two lists element by element.
sliding_window_max(numbers, size): Return the maximum of every window of a given size.
pairs_with_difference(numbers, difference): Count the pairs of numbers with a given difference.
merge_intervals(intervals): Merge overlapping intervals.
common_elements(lists): Return the elements that occur in every list of a list of lists.
random_sample(items, count): Pick a number of distinct random items from a list.
shuffle(items): Shuffle a list with the Fisher-Yates algorithm.
weighted_choice(items, weights): Pick one item at random according to weights.
is_prime(number): Check whether a number is prime.
primes_up_to(limit): List all primes up to a limit with the sieve of Eratosthenes.
prime_factors(number): Return the prime factors of a number.
factorial(number): Compute the factorial of a number without recursion.
fibonacci(count): Return the first Fibonacci numbers as a list.
gcd(first, second): Compute the greatest common divisor of two numbers with Euclid's algorithm.
lcm(first, second): Compute the least common multiple of two numbers.
digit_sum(number): Sum the digits of a number.
reverse_number(number): Reverse the digits of an integer and keep its sign.
is_armstrong(number): Check whether a number is an Armstrong number.
is_perfect(number): Check whether a number equals the sum of its proper divisors.
collatz(number): Return the Collatz sequence that starts at a number.
to_binary(number): Convert an integer to a binary string without using bin.
from_binary(digits): Convert a binary string to an integer without using int with a base.
to_roman(number): Convert an integer to a Roman numeral.
from_roman(numeral): Convert a Roman numeral to an integer.
to_base(number, base): Convert an integer to a string in any base from 2 to 36.
number_to_words(number): Write a number below one thousand in English words.
celsius_to_fahrenheit(degrees): Convert degrees Celsius to degrees Fahrenheit.
miles_to_km(miles): Convert miles to kilometers, rounded to two decimals.
body_mass_index(weight_kg, height_m): Compute the body mass index and name its category.
compound_interest(principal, rate, years): Compute the value of an investment with yearly compound interest.
loan_payment(principal, yearly_rate, months): Compute the monthly payment of a loan.
split_bill(total, people, tip_percent): Compute what each person pays for a bill with a tip.
apply_discount(price, percent): Apply a percentage discount and reject percentages outside 0 to 100.
income_tax(income, brackets): Compute a progressive income tax from a list of brackets.
make_change(amount, coins): Return the smallest number of coins that make up an amount.
mean(numbers): Compute the mean of a list and raise ValueError if it is empty.
median(numbers): Compute the median of a list of numbers.
mode(items): Return the most frequent items of a list.
standard_deviation(numbers): Compute the standard deviation of a sample.
normalize(numbers): Scale a list of numbers to the range from 0 to 1.
percentile(numbers, percent): Compute a percentile of a list of numbers by linear interpolation.
histogram(numbers, num_bins): Count how many numbers fall into each of several equal bins.
correlation(xs, ys): Compute the Pearson correlation of two lists.
linear_fit(xs, ys): Fit a straight line by least squares and return its slope and intercept.
dot_product(left, right): Compute the dot product of two vectors.
distance(first, second): Compute the Euclidean distance between two points.
polygon_area(points): Compute the area of a polygon from its corner points.
is_point_in_rectangle(point, rectangle): Check whether a point lies inside a rectangle.
quadratic_roots(a, b, c): Return the real roots of a quadratic equation.
evaluate_polynomial(coefficients, x): Evaluate a polynomial with Horner's rule.
square_root(number): Approximate a square root with Newton's method.
pascal_triangle(num_rows): Return the first rows of Pascal's triangle.
combinations(items, size): List all combinations of a given size without itertools.
permutations(items): List all permutations of a list recursively.
power_set(items): List all subsets of a list.
climb_stairs(steps): Count the ways to climb stairs with one or two steps at a time.
knapsack(weights, values, capacity): Solve the 0/1 knapsack problem with dynamic programming.
longest_common_subsequence(first, second): Find the longest common subsequence of two strings.
n_queens(size): Count the solutions of the n queens problem.
solve_sudoku(board): Solve a Sudoku by backtracking.
hanoi(disks): List the moves that solve the Tower of Hanoi.
flood_fill(grid, row, column, color): Recolor a connected region of a grid.
count_islands(grid): Count the connected groups of ones in a grid.
shortest_path(graph, start, goal): Find the shortest path in an unweighted graph by breadth-first search.
dijkstra(graph, start): Compute the shortest distances from a node in a weighted graph.
depth_first_search(graph, start): Return the nodes of a graph in depth-first order.
topological_sort(graph): Order the nodes of a directed acyclic graph topologically.
has_cycle(graph): Check whether a directed graph has a cycle.
connected_components(graph): Return the connected components of an undirected graph.
tree_depth(node): Compute the depth of a binary tree.
invert_tree(node): Mirror a binary tree.
in_order(node): Return the values of a binary search tree in sorted order.
is_balanced(text): Check whether the brackets in a string are balanced.
evaluate_rpn(tokens): Evaluate an expression in reverse Polish notation.
tokenize(expression): Split an arithmetic expression into numbers, operators and brackets.
game_of_life(grid): Compute the next generation of Conway's Game of Life.
tic_tac_toe_winner(board): Return the winner of a tic-tac-toe board, or None.
roll_dice(count, sides): Roll several dice and return the results with their sum.
deal_cards(num_players, num_cards): Deal cards from a shuffled deck to several players.
score_word(word): Compute the Scrabble score of a word.
guess_feedback(secret, guess): Return Wordle-like feedback for a guess.
invert_dict(mapping): Swap the keys and values of a dictionary, collecting keys that share a value.
merge_dicts(first, second): Merge two dictionaries and add the values of common keys.
deep_merge(base, override): Merge two nested dictionaries recursively.
flatten_dict(nested): Flatten a nested dictionary to keys joined by dots.
unflatten_dict(flat): Turn a dictionary with dotted keys into a nested one.
filter_dict(mapping, keys): Keep only the given keys of a dictionary.
sort_by_value(mapping): Return the items of a dictionary sorted by value, largest first.
dict_difference(old, new): List the keys that were added, removed or changed between two dictionaries.
count_items(items): Count the items of a list in a dictionary without using Counter.
nested_get(data, path, default): Read a value from nested dictionaries by a dotted path.
group_anagrams(words): Group the words that are anagrams of each other.
max_key(mapping): Return the key with the largest value, or None for an empty dictionary.
days_between(first, second): Count the days between two ISO dates.
is_leap_year(year): Check whether a year is a leap year.
age_in_years(birth_date, today): Compute an age in full years from a birth date.
next_weekday(date, weekday): Find the next date that falls on a given weekday.
count_business_days(start, end): Count the weekdays between two dates.
last_day_of_month(year, month): Return the last day of a month.
format_duration(seconds): Format a number of seconds as hours, minutes and seconds.
parse_duration(text): Convert a duration such as "1h 30m" to seconds.
parse_date(text): Parse a date written as day.month.year and raise ValueError if it is invalid.
to_timezone(moment, zone): Convert a naive UTC datetime to a named time zone.
week_number(date): Return the ISO week number of a date.
print_calendar(year, month): Print the calendar of a month as text.
overlapping_minutes(first, second): Compute how many minutes two meetings overlap.
time_until(deadline): Describe the time left until a deadline in words.
retry(function, attempts, delay): Call a function again if it raises, with a delay between attempts.
memoize(function): Cache the results of a function by its arguments.
compose(functions): Return a function that applies several functions from right to left.
debounce(function, wait): Return a function that ignores calls that follow too soon after the last one.
flatten_generator(nested): Yield the items of a nested list one at a time.
batched(iterable, size): Yield tuples of a given size from any iterable.
take_while_positive(numbers): Yield numbers until the first one that is not positive.
read_in_chunks(path, size): Yield a large file in chunks of bytes.
count_up(start, step): Yield an endless arithmetic sequence.
pairwise(items): Yield each pair of neighbouring items.
parallel_map(function, items): Apply a function to items in a thread pool and keep the order.
timed(function): Return the result of a call together with the seconds it took.
validate_password(password): Check that a password is long enough and holds letters, digits and a symbol.
generate_password(length): Generate a random password with the secrets module.
hash_password(password): Hash a password with a random salt using hashlib.
""")

# Code that some prompts show: function name -> (body, correct text, wrong text, what is seen).
CODE = {
    "count_vowels": (
        'count = 0\nfor letter in text.lower():\n    if letter in "aeiou":\n        count += 1\nreturn count',
        "        count += 1\nreturn count",
        "        count += 1\n    return count",
        "it only looks at the first letter",
    ),
    "is_palindrome": (
        'cleaned = text.lower().replace(" ", "")\nreturn cleaned == cleaned[::-1]',
        "cleaned[::-1]",
        "cleaned[:-1]",
        'it returns False for "level"',
    ),
    "reverse_words": (
        'words = sentence.split()\nreturn " ".join(reversed(words))',
        "reversed(words)",
        "words.reverse()",
        "it raises a TypeError",
    ),
    "most_common_word": (
        "counts = {}\nfor word in text.lower().split():\n    counts[word] = counts.get(word, 0) + 1\nreturn max(counts, key=counts.get)",
        "max(counts, key=counts.get)",
        "max(counts)",
        "it returns the last word of the alphabet",
    ),
    "are_anagrams": (
        "return sorted(first.lower()) == sorted(second.lower())",
        "sorted(second.lower())",
        "sorted(second)",
        'it returns False for "Listen" and "Silent"',
    ),
    "run_length_encode": (
        'encoded = ""\nindex = 0\nwhile index < len(text):\n    run = 1\n    while index + run < len(text) and text[index + run] == text[index]:\n        run += 1\n    encoded += text[index] + str(run)\n    index += run\nreturn encoded',
        "    index += run",
        "    index += 1",
        "it repeats parts of the string",
    ),
    "longest_word": (
        'longest = ""\nfor word in sentence.split():\n    if len(word) > len(longest):\n        longest = word\nreturn longest',
        "len(word) > len(longest)",
        "word > longest",
        "it returns the wrong word",
    ),
    "first_unique_character": (
        "for letter in text:\n    if text.count(letter) == 1:\n        return letter\nreturn None",
        "\nreturn None",
        "\n    return None",
        "it always gives up after the first character",
    ),
    "hamming_distance": (
        "return sum(a != b for a, b in zip(first, second))",
        "a != b",
        "a == b",
        "it counts the equal positions",
    ),
    "flatten": (
        "flat = []\nfor item in nested:\n    if isinstance(item, list):\n        flat.extend(flatten(item))\n    else:\n        flat.append(item)\nreturn flat",
        "flat.extend(flatten(item))",
        "flat.append(flatten(item))",
        "the result is still nested",
    ),
    "chunk": (
        "return [items[start:start + size] for start in range(0, len(items), size)]",
        "range(0, len(items), size)",
        "range(0, len(items))",
        "the chunks overlap",
    ),
    "remove_duplicates": (
        "seen = set()\nunique = []\nfor item in items:\n    if item not in seen:\n        seen.add(item)\n        unique.append(item)\nreturn unique",
        "        seen.add(item)\n",
        "",
        "duplicates are still there",
    ),
    "second_largest": (
        "largest = second = float('-inf')\nfor number in numbers:\n    if number > largest:\n        largest, second = number, largest\n    elif largest > number > second:\n        second = number\nreturn second",
        "largest, second = number, largest",
        "largest = number",
        "it fails for [1, 2, 3]",
    ),
    "moving_average": (
        "averages = []\nfor end in range(window, len(numbers) + 1):\n    averages.append(sum(numbers[end - window:end]) / window)\nreturn averages",
        "range(window, len(numbers) + 1)",
        "range(window, len(numbers))",
        "the last average is missing",
    ),
    "two_sum": (
        "seen = {}\nfor index, number in enumerate(numbers):\n    if target - number in seen:\n        return seen[target - number], index\n    seen[number] = index\nreturn None",
        "    seen[number] = index",
        "    seen[index] = number",
        "it misses pairs or returns wrong indices",
    ),
    "max_subarray_sum": (
        "best = current = numbers[0]\nfor number in numbers[1:]:\n    current = max(number, current + number)\n    best = max(best, current)\nreturn best",
        "max(number, current + number)",
        "max(0, current + number)",
        "it returns 0 for a list of negative numbers",
    ),
    "merge_sorted": (
        "merged, i, j = [], 0, 0\nwhile i < len(first) and j < len(second):\n    if first[i] <= second[j]:\n        merged.append(first[i])\n        i += 1\n    else:\n        merged.append(second[j])\n        j += 1\nreturn merged + first[i:] + second[j:]",
        "return merged + first[i:] + second[j:]",
        "return merged",
        "the end of the longer list is lost",
    ),
    "binary_search": (
        "low, high = 0, len(items) - 1\nwhile low <= high:\n    middle = (low + high) // 2\n    if items[middle] == target:\n        return middle\n    if items[middle] < target:\n        low = middle + 1\n    else:\n        high = middle - 1\nreturn -1",
        "low = middle + 1",
        "low = middle",
        "it never returns for some inputs",
    ),
    "bubble_sort": (
        "for end in range(len(items) - 1, 0, -1):\n    for i in range(end):\n        if items[i] > items[i + 1]:\n            items[i], items[i + 1] = items[i + 1], items[i]\nreturn items",
        "items[i], items[i + 1] = items[i + 1], items[i]",
        "items[i] = items[i + 1]\n            items[i + 1] = items[i]",
        "some numbers disappear",
    ),
    "insertion_sort": (
        "for i in range(1, len(items)):\n    key = items[i]\n    j = i - 1\n    while j >= 0 and items[j] > key:\n        items[j + 1] = items[j]\n        j -= 1\n    items[j + 1] = key\nreturn items",
        "items[j + 1] = key",
        "items[j] = key",
        "the list comes out scrambled",
    ),
    "quick_sort": (
        "if len(items) <= 1:\n    return items\npivot, *rest = items\nsmaller = [x for x in rest if x < pivot]\nlarger = [x for x in rest if x >= pivot]\nreturn quick_sort(smaller) + [pivot] + quick_sort(larger)",
        "x >= pivot",
        "x > pivot",
        "repeated numbers are dropped",
    ),
    "find_missing_number": (
        "n = len(numbers) + 1\nreturn n * (n + 1) // 2 - sum(numbers)",
        "len(numbers) + 1",
        "len(numbers)",
        "the answer is off",
    ),
    "transpose": (
        "return [[row[i] for row in matrix] for i in range(len(matrix[0]))]",
        "range(len(matrix[0]))",
        "range(len(matrix))",
        "it fails for matrices that are not square",
    ),
    "is_sorted": (
        "return all(items[i] <= items[i + 1] for i in range(len(items) - 1))",
        "range(len(items) - 1)",
        "range(len(items))",
        "it raises an IndexError",
    ),
    "move_zeros": (
        "nonzero = [n for n in numbers if n != 0]\nreturn nonzero + [0] * (len(numbers) - len(nonzero))",
        "(len(numbers) - len(nonzero))",
        "len(nonzero)",
        "the result has the wrong length",
    ),
    "merge_intervals": (
        "merged = []\nfor start, end in sorted(intervals):\n    if merged and start <= merged[-1][1]:\n        merged[-1][1] = max(merged[-1][1], end)\n    else:\n        merged.append([start, end])\nreturn merged",
        "max(merged[-1][1], end)",
        "end",
        "an interval inside another one shortens it",
    ),
    "is_prime": (
        "if number < 2:\n    return False\nfor divisor in range(2, int(number ** 0.5) + 1):\n    if number % divisor == 0:\n        return False\nreturn True",
        "int(number ** 0.5) + 1",
        "int(number ** 0.5)",
        "it says that 9 is prime",
    ),
    "primes_up_to": (
        "sieve = [True] * (limit + 1)\nprimes = []\nfor number in range(2, limit + 1):\n    if sieve[number]:\n        primes.append(number)\n        for multiple in range(number * number, limit + 1, number):\n            sieve[multiple] = False\nreturn primes",
        "[True] * (limit + 1)",
        "[True] * limit",
        "it raises an IndexError",
    ),
    "prime_factors": (
        "factors = []\ndivisor = 2\nwhile number > 1:\n    while number % divisor == 0:\n        factors.append(divisor)\n        number //= divisor\n    divisor += 1\nreturn factors",
        "number //= divisor",
        "number /= divisor",
        "the factors of very large numbers are wrong",
    ),
    "factorial": (
        "result = 1\nfor factor in range(2, number + 1):\n    result *= factor\nreturn result",
        "range(2, number + 1)",
        "range(number)",
        "it always returns 0",
    ),
    "fibonacci": (
        "numbers = []\na, b = 0, 1\nfor _ in range(count):\n    numbers.append(a)\n    a, b = b, a + b\nreturn numbers",
        "    a, b = b, a + b",
        "    a = b\n    b = a + b",
        "it doubles the numbers instead",
    ),
    "gcd": (
        "while second:\n    first, second = second, first % second\nreturn first",
        "return first",
        "return second",
        "it always returns 0",
    ),
    "digit_sum": (
        "total = 0\nwhile number > 0:\n    total += number % 10\n    number //= 10\nreturn total",
        "    number //= 10\n",
        "    number = number - 10\n",
        "the sum is far too large",
    ),
    "to_binary": (
        'digits = ""\nwhile number > 0:\n    digits = str(number % 2) + digits\n    number //= 2\nreturn digits or "0"',
        "str(number % 2) + digits",
        "digits + str(number % 2)",
        "the digits come out in reverse",
    ),
    "from_roman": (
        'values = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}\ntotal = 0\nfor i, letter in enumerate(numeral):\n    value = values[letter]\n    if i + 1 < len(numeral) and values[numeral[i + 1]] > value:\n        total -= value\n    else:\n        total += value\nreturn total',
        "        total -= value",
        "        total += value",
        '"IX" gives 11',
    ),
    "compound_interest": (
        "return round(principal * (1 + rate) ** years, 2)",
        "(1 + rate) ** years",
        "(1 + rate * years)",
        "the interest is not compounded",
    ),
    "median": (
        "ordered = sorted(numbers)\nmiddle = len(ordered) // 2\nif len(ordered) % 2 == 1:\n    return ordered[middle]\nreturn (ordered[middle - 1] + ordered[middle]) / 2",
        "ordered = sorted(numbers)",
        "ordered = numbers",
        "it is wrong for unsorted lists",
    ),
    "mean": (
        'if not numbers:\n    raise ValueError("mean of an empty list")\nreturn sum(numbers) / len(numbers)',
        "sum(numbers) / len(numbers)",
        "sum(numbers) // len(numbers)",
        "mean([1, 2]) returns 1",
    ),
    "normalize": (
        "low, high = min(numbers), max(numbers)\nreturn [(n - low) / (high - low) for n in numbers]",
        "(n - low) / (high - low)",
        "n - low / high - low",
        "the values are not between 0 and 1",
    ),
    "climb_stairs": (
        "one, two = 1, 1\nfor _ in range(steps - 1):\n    one, two = one + two, one\nreturn one",
        "range(steps - 1)",
        "range(steps)",
        "the count is one step ahead",
    ),
    "shortest_path": (
        "from collections import deque\n\nqueue = deque([[start]])\nvisited = {start}\nwhile queue:\n    path = queue.popleft()\n    if path[-1] == goal:\n        return path\n    for node in graph[path[-1]]:\n        if node not in visited:\n            visited.add(node)\n            queue.append(path + [node])\nreturn None",
        "queue.popleft()",
        "queue.pop()",
        "the path is not always the shortest",
    ),
    "depth_first_search": (
        "stack, visited = [start], []\nwhile stack:\n    node = stack.pop()\n    if node not in visited:\n        visited.append(node)\n        stack.extend(reversed(graph[node]))\nreturn visited",
        "    if node not in visited:\n        visited.append(node)\n        stack.extend(reversed(graph[node]))",
        "    visited.append(node)\n    stack.extend(reversed(graph[node]))",
        "it never ends if the graph has a cycle",
    ),
    "tree_depth": (
        "if node is None:\n    return 0\nreturn 1 + max(tree_depth(node.left), tree_depth(node.right))",
        "if node is None:\n    return 0\n",
        "",
        "it raises an AttributeError",
    ),
    "is_balanced": (
        'pairs = {")": "(", "]": "[", "}": "{"}\nstack = []\nfor character in text:\n    if character in pairs.values():\n        stack.append(character)\n    elif character in pairs and (not stack or stack.pop() != pairs[character]):\n        return False\nreturn not stack',
        "return not stack",
        "return True",
        'it accepts "(("',
    ),
    "invert_dict": (
        "inverted = {}\nfor key, value in mapping.items():\n    inverted.setdefault(value, []).append(key)\nreturn inverted",
        "in mapping.items()",
        "in mapping",
        "it raises a ValueError about unpacking",
    ),
    "merge_dicts": (
        "merged = dict(first)\nfor key, value in second.items():\n    merged[key] = merged.get(key, 0) + value\nreturn merged",
        "merged = dict(first)",
        "merged = first",
        "it changes the first dictionary",
    ),
    "sort_by_value": (
        "return sorted(mapping.items(), key=lambda item: item[1], reverse=True)",
        "item[1]",
        "item[0]",
        "it sorts by key",
    ),
    "group_anagrams": (
        'groups = {}\nfor word in words:\n    key = "".join(sorted(word))\n    groups.setdefault(key, []).append(word)\nreturn list(groups.values())',
        '"".join(sorted(word))',
        "sorted(word)",
        "it raises TypeError: unhashable type",
    ),
    "is_leap_year": (
        "return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)",
        " and (year % 100 != 0 or year % 400 == 0)",
        "",
        "it says that 1900 was a leap year",
    ),
    "retry": (
        "import time\n\nfor attempt in range(attempts):\n    try:\n        return function()\n    except Exception:\n        if attempt == attempts - 1:\n            raise\n        time.sleep(delay)",
        "        if attempt == attempts - 1:\n            raise\n",
        "",
        "the last error is swallowed",
    ),
    "memoize": (
        "cache = {}\n\ndef wrapper(*args):\n    if args not in cache:\n        cache[args] = function(*args)\n    return cache[args]\n\nreturn wrapper",
        "return wrapper",
        "return wrapper()",
        "decorating a function calls it at once",
    ),
    "pairwise": (
        "for i in range(len(items) - 1):\n    yield items[i], items[i + 1]",
        "yield items[i], items[i + 1]",
        "return items[i], items[i + 1]",
        "only the first pair comes out",
    ),
}

# Rows as a list of dictionaries. rows: name key, category key, number key.
RECORDS = lines("""
employees: name, department, salary
orders: order_id, status, amount
books: title, genre, page_count
students: name, course, score
products: name, category, price
movies: title, director, rating
cities: name, country, population
flights: flight_number, airline, delay
songs: title, artist, play_count
patients: name, ward, age
tickets: ticket_id, priority, cost
players: name, team, goal_count
cars: model, brand, mileage
recipes: title, cuisine, cooking_time
houses: address, district, rent
sensors: sensor_id, room, temperature
tweets: tweet_id, author, like_count
invoices: number, customer, total
plants: name, family, height
courses: title, teacher, capacity
animals: name, species, weight
hotels: name, city, nightly_price
runners: name, club, time
expenses: receipt, category, cost
servers: hostname, region, load
parcels: tracking_code, carrier, weight
volunteers: name, project, age
reviews: review_id, product, rating
teams: name, league, score
events: title, venue, attendance
""")

OPERATIONS = (
    (
        "total_{num}",
        "Return the sum of {num} over all {rows}.",
        'return sum(row["{num}"] for row in {rows})',
    ),
    (
        "average_{num}_by_{cat}",
        "Return the average {num} of the {rows} for each {cat}.",
        'groups = {{}}\nfor row in {rows}:\n    groups.setdefault(row["{cat}"], []).append(row["{num}"])\nreturn {{key: sum(values) / len(values) for key, values in groups.items()}}',
    ),
    (
        "top_{rows}",
        "Return the {rows} with the highest {num}, at most a given count.",
        'ordered = sorted({rows}, key=lambda row: row["{num}"], reverse=True)\nreturn ordered[:count]',
    ),
    (
        "count_by_{cat}",
        "Count the {rows} of each {cat}.",
        'counts = {{}}\nfor row in {rows}:\n    counts[row["{cat}"]] = counts.get(row["{cat}"], 0) + 1\nreturn counts',
    ),
    (
        "{rows}_above_average",
        "Return the {rows} whose {num} is above the average.",
        'average = sum(row["{num}"] for row in {rows}) / len({rows})\nreturn [row for row in {rows} if row["{num}"] > average]',
    ),
    (
        "best_by_{cat}",
        "Find the one of the {rows} with the highest {num} in each {cat}.",
        'best = {{}}\nfor row in {rows}:\n    key = row["{cat}"]\n    if key not in best or row["{num}"] > best[key]["{num}"]:\n        best[key] = row\nreturn best',
    ),
    (
        "index_by_{name}",
        "Map the {name} of each of the {rows} to its record.",
        'return {{row["{name}"]: row for row in {rows}}}',
    ),
    (
        "duplicate_{rows}",
        "List every {name} that occurs more than once in the {rows}.",
        'seen, duplicates = set(), set()\nfor row in {rows}:\n    if row["{name}"] in seen:\n        duplicates.add(row["{name}"])\n    seen.add(row["{name}"])\nreturn sorted(duplicates)',
    ),
    (
        "median_{num}",
        "Return the median {num} of the {rows}.",
        'values = sorted(row["{num}"] for row in {rows})\nmiddle = len(values) // 2\nif len(values) % 2:\n    return values[middle]\nreturn (values[middle - 1] + values[middle]) / 2',
    ),
    (
        "sort_{rows}",
        "Sort the {rows} by {cat} and then by {num}, highest first.",
        'return sorted({rows}, key=lambda row: (row["{cat}"], -row["{num}"]))',
    ),
    ("load_{rows}", "Read the {rows} with {name}, {cat} and {num} from a CSV file.", ""),
    ("save_{rows}", "Write the {rows} with {name}, {cat} and {num} to a CSV file.", ""),
    ("{rows}_to_json", "Save the {rows} as a JSON file, grouped by {cat}.", ""),
    (
        "validate_{rows}",
        "Check that each of the {rows} has a {name}, a {cat} and a positive {num}.",
        "",
    ),
    (
        "{rows}_report",
        "Print the {rows} as an aligned text table with a line for the total {num}.",
        "",
    ),
    ("share_by_{cat}", "Compute the percentage of the total {num} that each {cat} makes up.", ""),
    ("fill_missing_{num}", "Replace a missing {num} by the average {num} of the other {rows}.", ""),
    (
        "find_{row}",
        "Look up one of the {rows} by {name}, ignoring case, and raise KeyError if there is none.",
        "",
    ),
    ("plot_{num}_by_{cat}", "Draw a bar chart of the total {num} per {cat} with matplotlib.", ""),
    (
        "{rows}_summary",
        "Use pandas to compute the mean, minimum and maximum {num} of the {rows} per {cat}.",
        "",
    ),
)

CLASSES = lines("""
stack | push, pop and peek
queue | enqueue, dequeue and a size property
linked list | append, remove and iteration
binary search tree | insert, contains and in-order iteration
bank account | deposit, withdraw and a transaction history
shopping cart | add and remove items, apply a coupon and compute the total
temperature | conversion between Celsius, Fahrenheit and Kelvin
library | add books, lend them to members and list what is overdue
timer | start, stop and elapsed seconds, usable in a with statement
matrix | addition, multiplication and a readable repr
vector | addition, scalar multiplication and length
fraction | arithmetic operators and automatic reduction
playlist | add, remove, shuffle and total duration
contact book | add, search by name and export to JSON
inventory | add stock, remove stock and a low stock warning
parking lot | park a car, leave and count the free spaces
deck of cards | shuffle, deal and the number of cards left
LRU cache | get, put and a maximum size
rate limiter | at most a given number of calls per minute
event emitter | subscribe, unsubscribe and emit
to-do list | add a task, mark it as done and save to a file
student record | add grades and compute the average
employee hierarchy | a manager subclass with a list of reports
shape hierarchy | an abstract area method, with a circle and a rectangle
polynomial | evaluation, addition and derivative
priority queue | push with a priority and pop the most urgent item
graph | add edges, list neighbours and breadth-first search
trie | insert words and search by prefix
ring buffer | a fixed size that overwrites the oldest value
config reader | read an INI file with defaults and type conversion
logger | levels, timestamps and an optional file
money amount | a currency, addition and comparison of equal currencies
date range | contains, overlap and iteration over days
elevator | call from a floor, move and open the doors
vending machine | insert coins, choose a drink and return change
chess board | set up the pieces and print the board
quiz game | ask questions, keep score and show the result
text adventure room | exits, items and a description
retry policy | a maximum number of attempts and exponential backoff
unit converter | register units and convert between them
voting machine | cast votes, prevent double votes and announce the winner
seat map | reserve, release and show the free seats
word counter | feed text line by line and report the top words
observable value | call listeners when the value changes
undo history | do, undo and redo of text edits
thermostat | a target temperature, hysteresis and on/off state
alarm clock | set, snooze and ring at the right time
recipe | ingredients that scale with the number of servings
address | validation and formatting on several lines
bloom filter | add and a membership test with false positives
""")

PATTERNS = lines("""
e-mail addresses
phone numbers
dates in the form YYYY-MM-DD
times in 24-hour format
hashtags
IPv4 addresses
URLs
hexadecimal colors
postal codes with five digits
prices in dollars
words in double quotes
HTML tags
Markdown links
floating point numbers
log levels such as INFO or ERROR
Python variable names
repeated words
credit card numbers
version numbers such as 1.4.2
file paths that end in .txt
MAC addresses
ISBN numbers
user mentions such as @anna
lines that start with a number
CSV fields in quotes
key=value pairs
square brackets with text inside
percentages
UUIDs
chemical formulas
""")

PATTERN_JOBS = (
    "find all {what} in a string",
    "check whether a text contains any {what}",
    "replace all {what} in a text by a placeholder",
    "count the {what} on each line of a file",
)

FILE_KINDS = lines("""
a text file
a CSV file
a JSON file
a log file
an INI file
a large text file
a Markdown file
a tab-separated file
a JSON Lines file
an XML file
a YAML file
a ZIP archive
a folder of images
a folder of text files
a SQLite database
""")

FILE_JOBS = (
    "count the lines or entries in {what}",
    "create a backup copy of {what} with the date in its name",
    "print the name, size and last change of {what}",
    "find out whether {what} is empty or missing, with a clear error message",
    "compare {what} with an older version and list the differences",
    "search {what} for a word given on the command line",
    "convert {what} to another common format",
    "watch {what} and print a message when it changes",
)

SCRIPTS = lines("""
rename all files in a folder to lower case
print the ten largest files below a folder
download a web page and save it to disk
play rock paper scissors against the user
quiz the user on multiplication tables
roll dice until the user types quit
convert between currencies with fixed rates
show a countdown on the terminal
sort photos into folders by month
merge several CSV files with the same header
remove duplicate lines from a file
generate a random maze as text
simulate a coin toss a thousand times
draw a text histogram of word lengths
encrypt a text file with a password
keep a diary with one entry a day
track expenses in a CSV file
send a greeting e-mail with smtplib
print the weather from a public JSON API
scrape the headlines of a page with BeautifulSoup
start a small web server with one page
build a REST endpoint with Flask that returns JSON
write a FastAPI endpoint with a pydantic model
plot a sine curve with matplotlib
read an Excel sheet with pandas and print a summary
resize all images in a folder with Pillow
find broken links on a page
check whether a list of web sites is up
parse command line options with argparse
ask the user for numbers until the input is valid
play hangman in the terminal
guess a number between 1 and 100
generate invoice numbers in sequence
print a multiplication table
estimate pi by random points
solve a maze with breadth-first search
simulate a queue at a supermarket
count words in all text files of a folder
group a list of names into random teams
create a random study plan for a week
""")

CONCEPTS = lines("""
list comprehensions
generators and yield
decorators
context managers and the with statement
lambda functions
*args and **kwargs
the difference between a list and a tuple
the difference between == and is
mutable default arguments
shallow and deep copies
dictionary comprehensions
f-strings and format specifiers
exception handling with try, except, else and finally
raising and chaining exceptions
class methods and static methods
inheritance and super()
dunder methods such as __repr__ and __eq__
dataclasses
enums
type hints
properties
the global interpreter lock
threads and processes
async and await
virtual environments
import statements and packages
the if __name__ == "__main__" idiom
slicing with a step
unpacking with a star
sets and their operations
the walrus operator
enumerate and zip
map, filter and reduce
any and all
sorting with a key function
closures and nonlocal
recursion and its limit
the match statement
iterators and the iterator protocol
abstract base classes
unit tests with pytest
fixtures in pytest
mocking in tests
logging instead of print
reading and writing files with pathlib
the collections module
the itertools module
functools.lru_cache
regular expressions with the re module
dates and times with datetime
JSON with the json module
bytes and strings
integer division and modulo
floating point rounding errors
the difference between append and extend
None and truth values
scope and the LEGB rule
duck typing
string methods such as split and join
garbage collection and reference counts
""")

ERRORS = lines("""
IndexError: list index out of range
KeyError: 'name'
TypeError: unsupported operand type(s) for +: 'int' and 'str'
TypeError: 'NoneType' object is not iterable
TypeError: 'list' object is not callable
TypeError: 'int' object is not subscriptable
TypeError: missing 1 required positional argument: 'self'
TypeError: unhashable type: 'list'
AttributeError: 'NoneType' object has no attribute 'append'
AttributeError: 'str' object has no attribute 'items'
ValueError: invalid literal for int() with base 10: ''
ValueError: too many values to unpack (expected 2)
ValueError: could not convert string to float: '1,5'
NameError: name 'total' is not defined
UnboundLocalError: local variable 'count' referenced before assignment
IndentationError: expected an indented block
SyntaxError: invalid syntax
SyntaxError: EOL while scanning string literal
ModuleNotFoundError: No module named 'requests'
ImportError: cannot import name 'helper' (circular import)
FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'
PermissionError: [Errno 13] Permission denied
UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff
ZeroDivisionError: division by zero
RecursionError: maximum recursion depth exceeded
StopIteration
AssertionError without a message
json.decoder.JSONDecodeError: Expecting value: line 1 column 1
RuntimeError: dictionary changed size during iteration
OverflowError: math range error
""")

LIBRARY_JOBS = lines("""
NumPy | create a 3 by 3 identity matrix and multiply it by a vector
NumPy | replace all negative values of an array by zero
NumPy | compute the mean of each column of a matrix
NumPy | reshape an array of twelve numbers to three rows
NumPy | find the index of the largest value of an array
NumPy | simulate a thousand dice rolls and count each face
NumPy | normalize every row of a matrix to length one
NumPy | solve a system of two linear equations
pandas | read a CSV file and show the first five rows
pandas | drop the rows with missing values in one column
pandas | group sales by month and sum them
pandas | merge two data frames on a common key
pandas | add a column computed from two others
pandas | sort a data frame by two columns
pandas | find duplicate rows and remove them
pandas | convert a column of strings to dates
pandas | turn a long table into a pivot table
pandas | select the rows where a column exceeds its mean
pandas | rename columns and save the result as Excel
pandas | compute a seven day rolling average
matplotlib | draw two lines in one plot with a legend
matplotlib | make a scatter plot with labelled axes
matplotlib | show a histogram and save it as PNG
matplotlib | draw a pie chart with percentages
requests | send a GET request and handle a timeout
requests | post JSON to an API with a token in the header
requests | download a file with a progress message
BeautifulSoup | collect all links of a page
BeautifulSoup | extract a table of a page as a list of rows
Flask | handle a form with two fields
Flask | return a 404 page of your own
FastAPI | define a route with a path parameter and a query parameter
SQLAlchemy | define a model for a user and query it by e-mail
sqlite3 | create a table, insert rows and read them back
scikit-learn | train a decision tree and print its accuracy
scikit-learn | split data into training and test sets
scikit-learn | cluster points with k-means and plot them
PyTorch | define a small fully connected network
PyTorch | write a training loop for linear regression
asyncio | run three downloads at the same time
pytest | test that a function raises an exception
unittest | write a test case with setUp and two tests
argparse | accept a file name and an optional verbose flag
logging | log to a file and to the terminal
subprocess | run a shell command and capture its output
tkinter | show a window with a button that counts clicks
pygame | move a square with the arrow keys
Django | write a model for a blog post and its admin page
pydantic | validate a user with an age between 0 and 120
dataclasses | define an immutable point with a distance method
""")

LANGUAGES = ("JavaScript", "Java", "C++", "Go", "R", "Excel formulas")

WRITE = (
    "Write a Python function `{signature}` that {does}",
    "Write a Python function that {does} Call it `{name}`.",
    "Implement `{signature}` in Python. It should {do}",
    "Can you write a Python function to {ask}? Add a short example.",
    "I need a Python helper that {does} Please include type hints and a docstring.",
    'Complete this Python function.\n\n```python\ndef {signature}:\n    """{summary}"""\n```',
    "Python exercise: {do} Use the signature `{signature}`. Show the code and two example calls.",
    "Write `{signature}` in Python without external libraries. {summary} Handle edge cases.",
    "{summary} Write it as a Python function and explain how it works in a few sentences.",
    "How do I {ask} in Python? Show a function.",
)
TEST_ONLY = (
    "Write pytest tests for a function `{signature}` that {does}",
    "List five test cases, edge cases included, for a Python function that {does} Then write them with assert.",
)
READ = (
    "Explain what this Python code does.\n\n{code}",
    "Add a docstring and type hints to this function.\n\n{code}",
    "Write unit tests for the following function.\n\n{code}",
    "What are the time and space complexity of this function? Can it be improved?\n\n{code}",
    "Review this Python function and suggest improvements.\n\n{code}",
    "Rewrite this function so that it is shorter and easier to read.\n\n{code}",
    "Explain this code line by line to a beginner.\n\n{code}",
    "Convert this Python function to {language}.\n\n{code}",
    "Which edge cases does this function not handle? Show a safer version.\n\n{code}",
    "Give this function a better name and better variable names, and say why.\n\n{code}",
)
FIX = (
    "This function should {do} But {complaint}. Fix it.\n\n{code}",
    "Find the bug: {complaint}.\n\n{code}",
    "What is wrong with this Python code? {complaint_start}.\n\n{code}",
    "My code is supposed to {do} Instead, {complaint}. Please correct it and explain the mistake.\n\n{code}",
    "{code}\n\nDebug the function above: {complaint}.",
)
RECORD_NOTE = (
    "Each of the {rows} is a dictionary with the keys {keys}.",
    "`{rows}` is a list of dictionaries with {keys}.",
    "The input looks like [{example}, ...].",
)
CLASS_ASKS = (
    "Write a Python class for {a_thing}. Features: {features}.",
    "Design a small Python class that models {a_thing}: {features}. Include a docstring and an example.",
    "Implement {a_thing} in Python ({features}). Use type hints.",
    "Create {a_thing} class in Python. What it should offer: {features}. Then write three tests for it.",
    "Show me how to build {a_thing} in object-oriented Python ({features}).",
    "Python homework: a class for {a_thing}. It is graded on {features}. Please write it with comments.",
)
PATTERN_ASKS = (
    "Write a Python regular expression to {job}.",
    "Use the re module to {job}. Explain each part of the pattern.",
    "How can I {job} in Python? Give a function and a test string.",
    "I need to {job}. Write a Python function with a compiled regex.",
    "Write Python code to {job}, and mention cases that the pattern misses.",
)
FILE_ASKS = (
    "Write a Python script to {job}.",
    "How do I {job} with Python? Use pathlib.",
    "Write a function to {job}, with proper error handling.",
    "In Python, {job}. Only use the standard library.",
    "I want to {job} every morning. Write a Python script that I can run from cron.",
)
SCRIPT_ASKS = (
    "Write a Python program to {job}.",
    "Write a short Python script to {job}, with comments.",
    "I am learning Python. Show me how to {job}, step by step.",
    "Create a command line tool in Python to {job}. Put the logic in functions.",
    "Please write clean Python 3 code to {job}.",
)
ERROR_ASKS = (
    "My Python program stops with `{error}`. What does that mean and how do I fix it?",
    "Explain the error `{error}` and show a short example that causes it.",
    "I get this traceback in Python:\n\n```\n{error}\n```\n\nWhat are the usual causes?",
    "How can I handle `{error}` in Python without hiding real bugs?",
    "Write a small Python program that raises `{error}`, then a corrected version.",
)
LIBRARY_ASKS = (
    "Using {library} in Python, {job}. Show the code.",
    "How do I {job} with {library}?",
    "Write a Python example that uses {library} to {job}. Add comments.",
    "I am new to {library}. Show me how to {job}, and explain each line.",
    "Give me a minimal {library} snippet to {job}.",
)
CONCEPT_ASKS = (
    "Explain {concept} in Python with a simple example.",
    "I come from {language}. How should I think about {concept} in Python?",
    "What do I need to know about {concept} in Python? Keep it short.",
    "Give me three Python exercises on {concept}, with solutions.",
    "What are common mistakes with {concept} in Python?",
    "Write a short tutorial about {concept} for Python beginners.",
)


@dataclass(frozen=True)
class Function:
    """A function that may be asked for, with code to show where there is any."""

    signature: str
    summary: str
    code: str = ""
    wrong_code: str = ""
    complaint: str = ""
    notes: tuple[str, ...] = ("",)

    @property
    def name(self) -> str:
        """The name without its arguments."""
        return self.signature.split("(")[0]


def tasks() -> Iterator[tuple[str, Writer]]:
    """Every function, class, pattern, file job, script and concept, with its writer."""
    for function in (*plain_functions(), *record_functions()):
        yield f"function: {function.summary}", partial(write_function, function)
    for thing, features in (line.split(" | ") for line in CLASSES):
        yield f"class: {thing}", phrased(CLASS_ASKS, a_thing=an(thing), features=features)
    yield from jobs("regex", PATTERN_JOBS, PATTERNS, PATTERN_ASKS)
    yield from jobs("files", FILE_JOBS, FILE_KINDS, FILE_ASKS)
    for job in SCRIPTS:
        yield f"script: {job}", phrased(SCRIPT_ASKS, job=job)
    for library, job in (line.split(" | ") for line in LIBRARY_JOBS):
        yield f"library: {library}, {job}", phrased(LIBRARY_ASKS, library=library, job=job)
    for error in ERRORS:
        yield f"error: {error}", phrased(ERROR_ASKS, error=error)
    for concept in CONCEPTS:
        asks = phrased(CONCEPT_ASKS, concept=concept, language=LANGUAGES[:-1])
        yield f"concept: {concept}", asks


def jobs(
    kind: str, templates: tuple[str, ...], objects: list[str], asks: tuple[str, ...]
) -> Iterator[tuple[str, Writer]]:
    """Each job done to each object."""
    for template in templates:
        for what in objects:
            job = template.format(what=what)
            yield f"{kind}: {job}", phrased(asks, job=job)


def plain_functions() -> Iterator[Function]:
    """The functions of the list, with code for those that have some."""
    for line in FUNCTIONS:
        signature, summary = line.split(": ", 1)
        name = signature.split("(")[0]
        if name not in CODE:
            yield Function(signature, summary)
            continue
        body, right, wrong, complaint = CODE[name]
        assert right in body, f"the correct text of {name} is not in its body"
        code, wrong_code = (define(signature, b) for b in (body, body.replace(right, wrong)))
        yield Function(signature, summary, code, wrong_code, complaint)


def record_functions() -> Iterator[Function]:
    """Each operation on each kind of record."""
    for line in RECORDS:
        rows, keys = line.split(": ")
        name, cat, num = keys.split(", ")
        slots = {"rows": rows, "row": singular(rows), "name": name, "cat": cat, "num": num}
        example = f'{{"{name}": ..., "{cat}": ..., "{num}": ...}}'
        notes = tuple(note.format(rows=rows, keys=f"{name}, {cat} and {num}", example=example) for note in RECORD_NOTE)
        for function, summary, body in OPERATIONS:
            count = ", count" if function == "top_{rows}" else ""
            reads = function.startswith("load")
            header = (f"The file has a header line with {name}, {cat} and {num}.",)
            arguments, about = ("path", header) if reads else (rows + count, notes)
            signature = f"{function.format(**slots)}({arguments})"
            code = define(signature, body.format(**slots)) if body else ""
            text = re.sub(r"\b(a|an) (\w+)", lambda m: an(m[2]), summary.format(**slots))
            yield Function(signature, text, code, notes=about)


def define(signature: str, body: str) -> str:
    """The source of a function as a Markdown code block."""
    indented = "\n".join(f"    {line}" if line else "" for line in body.split("\n"))
    return f"```python\ndef {signature}:\n{indented}\n```"


def write_function(function: Function, rng: random.Random) -> str:
    """One prompt for a function: mostly to write, else code to explain, test or fix."""
    do = function.summary[0].lower() + function.summary[1:]
    slots = {
        "signature": function.signature,
        "name": function.name,
        "summary": function.summary,
        "do": do,
        "does": third_person(do),
        "ask": do.rstrip("."),
        "language": LANGUAGES[:-1],
    }
    kind = rng.random()
    if kind < 0.45 and function.code:
        slots |= {"complaint": function.complaint, "complaint_start": capital(function.complaint)}
        if function.wrong_code and kind < 0.2:
            return fill(rng, rng.choice(FIX), code=function.wrong_code, **slots)
        return fill(rng, rng.choice(READ), code=function.code, **slots)
    text = fill(rng, rng.choice(TEST_ONLY if kind > 0.92 else WRITE), **slots)
    gap = "\n\n" if text.endswith("```") else " "
    return f"{text}{gap}{rng.choice(function.notes)}".rstrip()


def third_person(sentence: str) -> str:
    """`return the sum ... and name it` as `returns the sum ... and names it`, for known verbs."""
    verb, rest = sentence.split(" ", 1)
    rest = re.sub(r"\b(and|but) (add|raise|keep|return|name|reject)\b", r"\1 \2s", rest)
    verb = f"{verb[:-1]}ie" if verb.endswith("ly") else verb
    return f"{verb}{'es' if verb.endswith(('s', 'x', 'sh', 'ch')) else 's'} {rest}"
