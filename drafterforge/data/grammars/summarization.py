"""Summarization prompts: a passage composed of typed facts, from news to e-mail threads, and the summary that is asked for."""

# Templates and word lists keep one entry a line.
# ruff: noqa: E501

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from drafterforge.data.grammars.base import Writer, an, capital, fill, lines, rows


def words(block: str) -> list[str]:
    """The words of a word list."""
    return " ".join(lines(block)).split()


FIRST_NAMES = words("""
Aisha Ben Carla Dmitri Elena Femi Greta Hassan Ingrid Jorge Kavya Leon Mina Nils Oluwa Petra
Ravi Sofia Tomas Ursula Vikram Wanda Yusuf Zora Clara Emre Freya Goran Helen Igor Joana Kenji
""")
LAST_NAMES = words("""
Abara Bianchi Castillo Dahl Eriksen Fischer Gupta Hoffmann Ivanova Jansen Kowalski Lindqvist Moreau Nakamura
Okafor Pereira Quist Rossi Sandoval Tanaka Ueda Varga Weber Yilmaz Ziegler Brandt Costa Doyle
""")
TOWNS = words("""
Alderbrook Brackenford Castlemere Dunhaven Eastmoor Fernhill Greywater Harrowgate Inverley Larksport Larkfield
Millbridge Northcote Oakridge Pinewater Queensbury Ravensholm Stonebridge Thornbury Westhaven Willowdale
""")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")


@dataclass(frozen=True)
class Genre:
    """A kind of text: its facts, its sentences in order, and what people want to have made of it."""

    noun: str  # what a user calls it
    facts: tuple[tuple[str, ...], ...]  # a group of slots each: their names, then rows of cells
    sentences: tuple[tuple[str, ...], ...]  # alternatives; an empty one may be left out
    asks: tuple[str, ...] = ()  # requests that suit this kind of text alone
    joint: str = " "
    titled: bool = False  # the first sentence is a title
    aligned: tuple[int, ...] = ()  # sentences whose alternatives belong together


# --- news ----------------------------------------------------------------------------------------

PROJECTS = lines("""
a new public library | the building of the old post office | reading rooms for children | the noise of late events
a network of protected bike lanes | four main streets | safer routes to school | the loss of parking spaces
a riverside park | the former shipyard | shade and playgrounds | the cost of cleaning the soil
a tram line to the airport | the northern districts | shorter commutes | years of construction in front of shops
a ban on cars in the old town | the streets around the cathedral | cleaner air | deliveries and access for people with disabilities
a solar farm | two fields next to the motorway | cheaper power for public buildings | the loss of farmland
an indoor swimming pool | the site behind the fire station | swimming lessons for all pupils | the running costs
a food market hall | the empty department store | affordable fresh food | competition for small grocers
a tiny-house village for homeless residents | a city-owned lot | a safe place to sleep | the distance to bus stops
a flood wall | the left bank of the river | protection of about 900 homes | the view and the old chestnut trees
a community health center | the ground floor of the town hall | shorter waiting times for a doctor | the shortage of nurses
a wind park | the ridge above the valley | income for the village | the effect on migrating birds
a free bus service at weekends | all lines inside the city limits | fewer cars downtown | who pays after the first year
a skate park | the space under the bridge | a place for teenagers | noise in the evening
a composting program | every household with a garden | less waste in landfills | smells in summer
a museum of local history | the old brewery | visitors from the region | doubts about the number of visitors
a night shelter for stray animals | the edge of the industrial area | fewer animals on the streets | barking at night
a speed limit of 30 kilometers per hour | all residential streets | fewer accidents | slower buses
a fiber network | every building in the district | faster connections for home offices | dug-up sidewalks
a school garden program | twelve primary schools | lessons outdoors | who waters the beds during vacations
""")
PROJECT_STAGES = lines("""
approved | The council approved the plan by {n1} votes to {n2} on {day} evening. | The first steps are planned for {month}, and everything should be in place {n3} months later.
delayed | The start has been delayed again, the city said on {day}. | A new date will be announced in {month}, once the last contracts have been signed.
started | After {n3} months of preparation, the start was celebrated on {day}. | In {month} the city wants to publish first figures on how it is used.
over budget | The project will cost {p1} percent more than planned, a report showed on {day}. | The council has to decide in {month} whether to cut the plan or to borrow more.
put to a vote | Residents will vote on the plan in {month}, the mayor announced on {day}. | A simple majority decides, provided that at least {p2} percent of voters take part.
stopped by a court | A court has stopped the project for now after a complaint by neighbors, it became known on {day}. | The city can appeal until the end of {month}.
paid by a donor | A local foundation offered on {day} to pay {p2} percent of the costs. | The offer stands until {month} and asks for a say in the design.
""")
LOCAL_NEWS = Genre(
    "article",
    (("what | where | gain | worry", *PROJECTS), ("stage | event | next", *PROJECT_STAGES)),
    (
        ("{town} - {event}", "{event}", "{town}: {event}"),
        ("It concerns {what}, with {where} as the location.", "At issue is {what}. The location is {where}.", "The subject has divided {town} for months: {what}, with {where} as the location."),
        ("The city pays {p6} percent of the costs, the region pays the rest.", "According to the finance department, the costs come to about {n5} euros per resident.", "How much it will cost in the long run, nobody can say yet."),
        ("Supporters expect {gain}.", "The main argument of those in favor is {gain}.", "Mayor {person} stressed the benefit: {gain}."),
        ("Critics worry about {worry}.", "Opponents point to another side: {worry}.", "At a public hearing, {n6} speakers raised concerns, above all about {worry}."),
        ("\"We have listened to everyone,\" said {person2}, who leads the planning office.", "\"Nobody is against progress, but the details matter,\" said {person2} of the residents' group.", "\"I have lived here for {n4} years and never seen so much debate,\" said shop owner {person2}.", ""),
        ("A survey among {c1} residents found {p4} percent in favor and {p5} percent against, while the rest had no opinion.", "An online petition has collected {c1} signatures so far.", ""),
        ("{next}",),
    ),
    ("Write a headline and a one-sentence teaser for this article.\n\n{text}", "Who wants what, and what happens next? Answer in three sentences, using only the article.\n\n{text}", "List the arguments for and against that appear in the text.\n\n{text}"),
)  # fmt: skip

EVENTS = lines("""
fire | A fire broke out in {place} shortly before {hour} {half} on {day}. | a faulty charger | smoke alarms woke the people inside | {n2} people were treated for smoke
burst water main | A burst water main flooded {place} early on {day}. | the age of the pipe, which was laid in 1968 | a passer-by noticed water coming through the pavement | nobody was hurt, but {n4} cellars had to be pumped out
power cut | A power cut hit {place} and the streets around it for {n1} hours on {day}. | a digger that cut a cable | emergency generators started within a minute | {n2} people had to be freed from elevators
gas leak | {place_cap} was evacuated on {day} because of a gas leak. | a cracked valve | an employee smelled gas and called for help | {c2} people had to wait outside for two hours
storm damage | A storm tore part of the roof off {place} on {day} night. | gusts of up to 120 kilometers per hour | the caretaker had closed the building an hour earlier | no one was injured
chemical spill | A chemical spill closed {place} for most of {day}. | a forklift that tipped over a container | the area was sealed within ten minutes | {n1} workers complained of sore eyes
false alarm | A false alarm emptied {place} at about {hour} {half} on {day}. | steam from a broken heating pipe | the evacuation took less than seven minutes | one person twisted an ankle
theft | Thieves broke into {place} during the night to {day}. | a back door that had been left unlocked | a neighbor wrote down part of a licence plate | nobody was in the building at the time
flooding | Heavy rain flooded {place} on {day} afternoon. | blocked drains | volunteers filled sandbags until midnight | {n2} people were brought to safety by boat
crash | A delivery van crashed into the entrance of {place} on {day} morning. | brakes that failed on the hill | the driver sounded the horn the whole way down | the driver and {n1} pedestrians had minor injuries
lost animal | A runaway horse kept {place} busy for {n1} hours on {day}. | a gate that had not been latched | a riding teacher calmed the animal with apples | nobody was hurt, although a flower bed was ruined
computer failure | A computer failure brought {place} to a standstill on {day}. | an update that had not been tested | employees went back to pen and paper | about {c2} people had to come back another day
""")
PLACES = lines("""
the central railway station
a primary school
the public hospital
a shopping mall
the town hall
a chocolate factory
the city theater
a retirement home
the university library
a supermarket
the harbor terminal
the indoor ice rink
""")
INCIDENT_NEWS = Genre(
    "report",
    (("kind | event | cause | response | harm", *EVENTS), ("place", *PLACES)),
    (
        ("{event}", "{town} - {event}"),
        ("According to the first findings, the reason was {cause}.", "Investigators name {cause} as the likely cause.", "The cause was {cause}, fire chief {person} said."),
        ("{response_cap}, which prevented worse.", "By luck, {response}.", "Witnesses report that {response}."),
        ("{harm_cap}.", "As far as is known, {harm}."),
        ("The damage is estimated at {m2} thousand euros.", "Insurers put the damage at about {m2} thousand dollars.", "How high the damage is remains unclear."),
        ("\"Everyone stayed calm,\" said {person2}, who was there.", "\"It was over faster than it felt,\" said {person2}, who works there.", "\"I first thought it was a drill,\" said {person2}, a visitor.", ""),
        ("It was the {nth} such case this year.", "A similar case happened in {month} of last year.", ""),
        ("{place_cap} is expected to be open again on {day2}.", "Normal service should resume by {day2}.", "The police ask witnesses to come forward by {day2}."),
    ),
    ("Extract who, what, when, where and why from this report.\n\n{text}", "Write a push notification of at most {words} words for this story.\n\n{text}", "{text}\n\nRewrite this as a brief for the radio news, two sentences."),
)  # fmt: skip

COMPANIES = lines("""
a maker of electric bicycles | Velora
a regional dairy | Morrow Creek
a chain of bookstores | Paper Lantern
a producer of garden tools | Grünwerk
a software firm for dentists | Molario
an airline with eleven aircraft | Northwind Air
a maker of hearing aids | Claraton
a furniture company | Ash & Alder
a brewery founded in 1871 | Steinhof
a maker of toys from recycled plastic | Loopling
a logistics company | Harbor & Hill
a maker of solar roof tiles | Suntessa
a bakery chain | Korn & Co
a video game studio | Lantern Fox
a producer of medical gloves | Safira
a grower of cut flowers | Bloomhaus
""")
BUSINESS = lines("""
record sales | sales rose by {p1} percent to {m1} million euros in the last quarter | strong demand abroad | the price of raw materials | hire {c2} people
job cuts | the company will cut {c2} of its {c1} jobs by the end of {month} | falling orders | the mood among the staff | offer training to those who leave
takeover | a larger competitor offers {m1} million dollars for the company | its patents and its loyal customers | the future of the main site | put the offer to the shareholders in {month}
recall | the company recalls about {c1} items sold since {month} | a part that can break under load | the trust of customers | replace every item free of charge
new factory | a new plant with {c2} jobs is to be built in {town} | short distances to suppliers | a lack of skilled workers | start production within {n3} months
four-day week | the staff will work four days a week at full pay | a trial in which output rose by {p1} percent | cover on Fridays | review the rule every {n1} months
price increase | prices will rise by {p1} percent in {month} | higher wages and energy costs | customers who may switch to cheaper brands | keep the prices stable for a year after that
change at the top | {person}, the chief executive, will step down in {month} after {n4} years | a wish to spend more time with family | an unfinished reorganization | name a successor within {n1} weeks
insolvency | the company filed for insolvency on {day} | a loss of its largest customer | {c2} jobs | continue to operate while a buyer is sought
plastic-free packaging | all packaging will be free of plastic by {month} | pressure from customers and retailers | higher costs of {p1} percent | sell its solution to other firms
""")
BUSINESS_NEWS = Genre(
    "article",
    (("firm | brand", *COMPANIES), ("kind | news | reason | risk | plan", *BUSINESS)),
    (
        ("{brand}, {firm} based in {town}, has made news: {news}.", "News from {brand}, {firm}: {news}.", "At {brand}, {firm} in {town}, {news}. This was announced on {day}."),
        ("The reason, according to the management: {reason}.", "The company gives one main reason: {reason}.", "Asked for the background, spokesperson {person2} named {reason}."),
        ("Analysts see a risk: {risk}.", "One point of concern is {risk}.", "Employee representatives mention {risk} as the weak spot."),
        ("{brand} has {c1} employees in {n5} places.", "The company sells its products in {n4} countries.", "About {p2} percent of its revenue comes from abroad.", ""),
        ("\"This was not an easy decision, but it is the right one,\" said finance chief {person3}.", "\"We look ahead with confidence,\" said {person3}, a member of the board.", "\"We would have liked to be asked earlier,\" said {person3} of the works council.", ""),
        ("As a next step, the company wants to {plan}.", "{brand} now plans to {plan}.", "What follows is already clear: the firm wants to {plan}."),
        ("The works council was informed on {day2}.", "Customers were told by e-mail.", "The company is not listed on the stock exchange.", ""),
    ),
    ("Summarize this for an investor in two sentences: what happened, and what is the risk?\n\n{text}", "Turn this article into three bullet points for a morning newsletter.\n\n{text}", "What does this mean for employees? Answer from the text in at most {words} words.\n\n{text}"),
)  # fmt: skip

SPORTS = lines("""
football | {a} to {b} | goals | scored twice after the break | a save in the last minute
basketball | {x} to {y} | points | hit four three-pointers in a row | a blocked shot at the buzzer
handball | {h} to {g} | goals | scored five times in ten minutes | two saved penalties
ice hockey | {a} to {b} | goals | scored while a man short | a puck that hit the post
volleyball | three sets to {s} | points | served six aces | a block at match point
water polo | {g} to {k} | goals | scored from the halfway line | a save with one hand
rugby | {t} to {k2} | points | ran half the length of the field for a try | a tackle on the line
""")
MATCHES = lines("""
final | the final of the regional cup | The winners last held the trophy {n4} years ago. | a parade through the town on {day2}
derby | the {nth} derby between the two neighbors | The last meeting had ended in a draw. | a return match in {month}
relegation match | a match against relegation | With this result, {club2} will play one league lower next season. | talks about a new coach
opening match | the first match of the season | Both teams came with several new players. | an away match next {day2}
charity match | a charity match for the children's hospital | The ticket sales brought in {m2} thousand euros. | a repeat next year
comeback | a match that seemed lost at half time | {club} had been far behind after twenty minutes. | a place in the next round
farewell | the last match of captain {person2} | {person2} played {c2} games for the club. | a job as youth coach
match in the rain | a match on a soaked field | The start had been delayed by {n4} minutes. | a rest of {n1} days
""")
SPORT_NEWS = Genre(
    "match report",
    (("sport | score | points | deed | moment", *SPORTS), ("kind | occasion | note | next", *MATCHES)),
    (
        ("{club} won {occasion} in {sport} against {club2}, {score}.", "With a result of {score}, {club} beat {club2} on {day}. It was {occasion} in {sport}.", "{c1} people saw {club} beat {club2} {score} in {occasion} on {day}."),
        ("{note}",),
        ("Player of the day was {person}, who {deed}.", "Everyone talked about {person} afterwards, who {deed}."),
        ("The decisive scene, however, was {moment}.", "It could have ended differently without {moment}."),
        ("\"We never stopped believing in ourselves,\" said coach {person3}.", "\"My team was tired, but brave,\" said {person3}, who coaches the losing side.", "\"One mistake decided this game,\" said {person3}, the coach of {club2}.", ""),
        ("The referee showed {n1} yellow cards and had little trouble otherwise.", "{n1} players had to be replaced because of injuries.", "The mood in the stands stayed friendly.", ""),
        ("What comes next: {next}.", "The next thing on the calendar is {next}."),
    ),
    ("Write the result and the key moment as a social media post of at most {words} words.\n\n{text}", "I missed the game. Tell me in two sentences what happened.\n\n{text}"),
)  # fmt: skip

# --- work ----------------------------------------------------------------------------------------

MEETINGS = lines("""
the launch of the mobile app | test the payment page on old phones | write the text for the app store | answer open questions of the legal team | marketing wants to announce it in {month}
the move to the new office | order {n4} height-adjustable desks | label all cables | tell customers the new address | the lease of the old office ends in {month}
the summer festival | reserve the tent | find two more volunteers for the bar | ask the city for a noise permit | last year the power failed twice
the new website | rewrite the product pages | collect better photos | set up redirects from old links | visits have dropped by {p1} percent since spring
the hiring of two engineers | shorten the job advert | prepare a coding exercise | call the three strongest candidates | {c2} people have applied
the yearly budget | cut the travel costs by {p1} percent | get a second offer for insurance | move the server contract to {month} | energy costs are higher than planned
the school trip to the coast | collect the consent forms | book the bus by {day2} | pack a first-aid kit | {n4} pupils have food allergies
the customer survey | drop the five longest questions | send a reminder on {day2} | build a chart for the board | only {p2} percent have answered so far
the warehouse | buy a second forklift | repaint the safety lines | train the night shift | picking errors rose by {p1} percent
the community garden | repair the water pump | build two raised beds | write a rota for weekends | the waiting list has {n4} names
the theater production | finish the costumes for act two | print the posters | find a replacement for the lead singer | {c2} tickets are already sold
the apprenticeship program | visit three schools | update the brochure | name a mentor for every apprentice | last year {n2} places stayed empty
the clinic's opening hours | try late hours on {day2} | change the phone message | ask patients about weekends | the waiting time is {n4} minutes on average
the library's reading club | buy {n4} copies of the next book | invite a local author | start a group for teenagers | attendance has doubled
the data backup | test a full restore | move the copies to a second site | write down who to call | the last test is {n3} months old
the sports club's new gym | get three offers for the floor | apply for a grant by {month} | inform the members | the old floor has failed inspection
the recipe book | photograph the last {n4} dishes | check all quantities | choose a cover | the printer needs the files in {month}
the delivery service | drop the most distant district | lease one electric van | raise the minimum order | fuel costs rose by {p1} percent
the research grant | finish the budget table | get a letter from the partner university | cut the summary to one page | the deadline is on {day2}
the holiday schedule | publish the list by {day2} | let people swap days | keep one person on call | two teams asked for the same week
""")
MOODS = lines("""
agreement | All points were agreed without a vote. | the size of the project team
disagreement about costs | {first3} doubted that the costs are realistic. The point was left open. | the costs
disagreement about the date | {first3} asked to move the date by two weeks, which the group rejected by {n2} votes to one. | the date
missing people | Since {first4} was ill, one point was moved to the next meeting. | the supplier
a surprise | {first3} brought up a letter from a competitor. It will be looked at separately. | the letter
praise | {first4} thanked everybody for the work of the last weeks. | a thank-you dinner
an outside guest | A guest from {town}, {person}, told the group about a similar project there, which took {n3} months. | a visit to {town}
a technical problem | The call dropped twice, so that the last item was only touched briefly. | a better connection
""")
MEETING_NOTES = Genre(
    "set of meeting notes",
    (("about | job1 | job2 | job3 | fact", *MEETINGS), ("mood | remark | open", *MOODS)),
    (
        ("Notes, {day}, {clock}: {about}", "Meeting about {about}, {day}", "Minutes - {about} ({date})"),
        ("Present: {first}, {first2}, {first3}. Absent: {first4}.", "With {first}, {first2} and {first3}; {first4} sent apologies."),
        ("Background: {fact}.", "- {first} opened the meeting and reminded everyone that {fact}."),
        ("- {first} will {job1} until {day2}.", "- We decided to {job1}. {first} takes care of it by {day2}."),
        ("- {first2} offered to {job2}, with help from {first3}.", "- To do for {first2}: {job2}."),
        ("- {job3_cap}: everybody agrees, but nobody has time this week. {first3} will ask around.", "- {first3} will {job3} before the next meeting."),
        ("- {remark}",),
        ("- Open: {open}.", "- Not discussed for lack of time: {open}.", ""),
        ("Next meeting: {day2}, same time.", "We meet again on {day2} at {clock}."),
    ),
    ("List the action items with the person responsible and the date.\n\n{text}", "{text}\n\nTurn these notes into a short e-mail to those who could not come.", "What was decided, and what is still open?\n\n{text}", "Make a table of tasks from these notes: task, owner, deadline.\n\n{text}"),
    joint="\n",
)  # fmt: skip

SERVICES = lines("""
the online shop | customers could not pay
the booking site | double bookings were made
the mail server | messages arrived hours late
the mobile app | users were logged out again and again
the public API | one request in three failed
the image search | results were empty
the payroll system | salaries were calculated without overtime
the ticket machines | cards were refused
the hospital's patient portal | appointments were not shown
the streaming service | videos stopped after a few seconds
the school platform | homework could not be handed in
the warehouse scanner | parcels were sent to the wrong dock
the chat service | messages appeared twice
the data warehouse | the morning report was missing
the login page | passwords were rejected
the phone system | calls dropped after a minute
""")
FAULTS = lines("""
expired certificate | a security certificate had expired at midnight | renewed the certificate | add an alarm thirty days before any certificate expires
full disk | a disk was full of old log files | deleted the logs and restarted the service | rotate the logs daily
bad deployment | a new version contained an untested change to the configuration | rolled back to the previous version | require a second review for configuration changes
database lock | a long-running report had locked a central table | stopped the report | run such reports on a copy of the database
memory leak | a library kept memory that it no longer needed | restarted the servers one by one | update the library and watch the memory
network change | a firewall rule blocked the traffic between two data centers | removed the rule | test firewall changes in a lab first
traffic peak | a newsletter brought ten times the usual number of visitors | added servers | agree on mailing dates with the operations team
clock error | the clock of one server was four minutes slow | synchronized the clock | monitor time differences
supplier outage | a supplier's service was down | switched to a backup supplier | make the switch automatic
wrong permission | a clean-up script had removed a permission that was still needed | restored the permission | list all permissions in version control
power failure | a power supply failed and its spare had not been plugged in | replaced the power supply | check the spares every quarter
data error | an imported file used commas where points were expected | corrected the data by hand | validate every file before it is imported
""")
POSTMORTEM = Genre(
    "incident report",
    (("service | symptom", *SERVICES), ("kind | cause | fix | lesson", *FAULTS)),
    (
        ("Incident report: {service}, {date}", "Post-mortem - {service} ({day})", "What happened to {service} on {day}"),
        ("Between {hour}:{minute} {half} and {hour3}:{minute2} {half}, {symptom}.", "Starting at {hour}:{minute} {half}, {symptom}. It lasted {c2} minutes."),
        ("About {p1} percent of users were affected, mainly in {town}.", "Support received {c2} complaints within the first hour.", "We estimate that {c1} people noticed the problem."),
        ("The first alarm went to a person on vacation, so that {n4} minutes were lost.", "A customer reported the problem before our own monitoring did.", "Monitoring raised an alarm after {n1} minutes.", ""),
        ("The cause: {cause}.", "It turned out that {cause}.", "After some wrong turns - at first we suspected the network provider - {first} found that {cause}."),
        ("{first2} {fix}, after which everything went back to normal.", "To solve the problem, the team {fix}.", "The team {fix} at {hour3}:{minute2} {half}."),
        ("No data was lost.", "A small number of records, {n5} in all, had to be entered again.", "No personal data was exposed at any time.", ""),
        ("What we will do: {lesson}. Owner: {first3}, due in {n1} weeks.", "To keep this from happening again, we will {lesson}. {first3} is responsible."),
    ),
    ("Give me the root cause, the impact and the follow-up in one line each.\n\n{text}", "Write a status page message for customers, based on this internal report. Leave out names.\n\n{text}", "{text}\n\nSummarize this for the management, without technical terms."),
    titled=True,
)  # fmt: skip

THREADS = lines("""
the order of the conference badges | the supplier needs the names by {day2} | {n4} names are still missing | print blank badges for latecomers
the broken coffee machine | a repair costs {m2} euros | a new one would cost only twice as much | buy a new one from the team budget
the translation of the manual | the French version is {n4} pages short | a chapter was removed by mistake | send the file again and add two days
the rental car | it was returned with a scratch | the photos from the first day show the scratch | forward the photos to the rental firm
the photo for the cover | the file is too small for print | the photographer is abroad until {month} | use the drawing instead
the guest lecture | the hall is double-booked | a smaller room with {n4} seats is free | stream the lecture to a second room
the invoice from {month} | it was paid twice | the accounting system changed in between | get a credit note instead of a refund
the apartment viewing | two times are possible, {day} and {day2} | the heating is being repaired on one of them | meet on {day2} in the morning
the birthday present | {first3} has already bought the book | the shop exchanges it until {day2} | give a voucher for a boat trip instead
the lost parcel | the tracking has not changed for {n1} days | the house number was missing on the label | send it again by express
the software licence | it runs out in {month} | only {n2} people use it | keep two seats and cancel the rest
the choir concert | the pianist is ill | {first4} knows the pieces | rehearse an extra hour on {day2}
the garden fence | the neighbor wants to share the costs | one offer is {p1} percent cheaper but takes longer | take the cheaper offer
the training course | the trainer asks for {n4} participants at least | so far there are {n2} fewer | invite the partner company
the hotel booking | breakfast was not included | the price with breakfast is only slightly higher | change the booking today
the holiday swap | {first} needs the first week of {month} | {first3} can move, but only if the project is done | decide after the review on {day2}
the press release | the figures are not final | the journalist has a deadline at {clock} | send it without the figures
the old printer | a school would like to have it | it still holds stored documents | wipe the memory before giving it away
""")
TWISTS = lines("""
deadline | It has to be done by {day2}, otherwise we lose the reservation.
boss is copied | I am adding {first4} in copy, who has to approve anything above {m2} euros.
wrong attachment | Sorry, the first attachment was the wrong one. Please use the new file.
out of office | I will be out of the office from {day2} on. {first4} stands in for me.
phone call | We could also talk on the phone, I am free at {clock}.
small praise | By the way, thank you for the quick help last week.
""")
EMAILS = Genre(
    "e-mail thread",
    (("about | problem | finding | answer", *THREADS), ("twist | remark", *TWISTS)),
    (
        ("From: {first}\nTo: {first2}\nSubject: {about_cap}\n\nHi {first2},", "{first} wrote on {day}:\nHello {first2},", "Subject: {about_cap}\n\n[{first}, {hour}:{minute}]"),
        ("I have to come back to {about}: {problem}. What shall we do?", "a quick question about {about}. As it stands, {problem}. Any idea?", "we have a small problem with {about}, because {problem}. Can you look into it?"),
        ("{remark}\n\n{first}", "{remark}\n\nBest,\n{first}"),
        ("---\n{first2} replied:", "> From: {first2}", "[{first2}, {hour2}:{minute2}]"),
        ("I checked, and {finding}. My proposal: {answer}.", "Thanks for the message. {finding_cap}. So I would say that we {answer}."),
        ("Does this work for you?", "Let me know by tomorrow noon.", "If I hear nothing, I will go ahead."),
        ("---\n{first} replied:", "> From: {first}", "[{first}, {hour3}:{minute}]"),
        ("Sounds good, let's do that. Could you tell {first3} as well?", "I would prefer to wait a day, but if {first3} agrees, go ahead.", "Perfect. I will put it in the calendar and inform {first3}."),
    ),
    ("Summarize the thread: problem, solution, who does what?\n\n{text}", "I was away. What do I need to know from this conversation?\n\n{text}", "{text}\n\nDraft one sentence that {first3} can read to be up to date.", "Extract all open tasks and dates from these messages.\n\n{text}"),
    joint="\n",
    aligned=(0, 3, 6),
)  # fmt: skip

SUPPORT = lines("""
a dishwasher | shows error code E{n4} and stops | take out and rinse the filter
a robot vacuum | drives in circles | wipe the sensors with a dry cloth
a pair of wireless headphones | connects on one side only | reset both sides in the charging case
an e-book reader | no longer opens bought books | sign out, restart and sign in again
a smart thermostat | heats at night although it is set not to | set the time zone again
a coffee machine | leaks from the bottom | replace the seal of the water tank
an electric toothbrush | stops after ten seconds | charge it for a full day once
a fitness watch | counts steps while its owner is driving | update the software
a garden hose reel | no longer pulls the hose back | release the lock on the left side
a video doorbell | does not ring at night | turn off the quiet mode
an electric kettle | switches off before the water boils | remove the limescale with vinegar
a home router | loses the connection every evening | change the channel in the settings
a standing desk | only moves up, never down | hold both buttons for ten seconds
an air fryer | smells of plastic | run it empty with lemon water
""")
OUTCOMES = lines("""
solved | That did it, thank you! | closed as solved
not solved, replacement | I tried that, but nothing changed. | a replacement is sent within {n1} working days
not solved, technician | It worked for a minute, and then it was the same again. | a technician comes on {day2} between {hour} and noon
refund | To be honest, I would rather return it. | a refund is paid within {n4} days after the return
customer will try later | I am not at home now and will try it tonight. | the ticket stays open until {day2}
complaint | This is the third time I have to contact you about it. | a supervisor calls back on {day2}
""")
SUPPORT_CHAT = Genre(
    "support chat",
    (("item | fault | advice", *SUPPORT), ("outcome | reaction | result", *OUTCOMES)),
    (
        ("Agent {first}: Hello, how can I help you today?", "{first} (support): Good morning, what can I do for you?"),
        ("Customer: Hi, I bought {item} {n1} weeks ago and it {fault}.", "Customer: I have {item}. Since {day} it {fault}. Very annoying."),
        ("{first}: I am sorry to hear that. May I have the order number?", "{first}: Thank you for telling us. Is it still under warranty?"),
        ("Customer: It is {c1}-{c2}. I have the receipt, too.", "Customer: Yes, order {c1}{n4}, paid by card."),
        ("{first}: Thanks. In most cases it helps to {advice}. Could you try that?", "{first}: This is a known problem. Please {advice} and tell me what happens."),
        ("Customer: {reaction}",),
        ("{first}: Understood. I have noted it as follows: {result}. You will get an e-mail. Anything else?", "{first}: All right. For our records: {result}. Is there anything else?"),
        ("Customer: No, that is all. Bye.", "Customer: No, thanks. Have a good day.", "Customer: Please do not forget the e-mail. Bye."),
    ),
    ("Summarize this chat for the ticket system in two lines: problem and outcome.\n\n{text}", "How satisfied does the customer seem, and why? First summarize the chat in one sentence.\n\n{text}", "{text}\n\nWrite a short hand-over note for the next agent."),
    joint="\n",
    aligned=(2, 3),
)  # fmt: skip

# --- opinions, studies, stories, rules -----------------------------------------------------------

PRODUCTS = lines("""
a backpack | the padded straps | the stiff zippers | it kept my laptop dry in a downpour
a blender | the quiet motor | the jar that is hard to clean | it crushes ice in seconds
a pair of running shoes | the soft sole | the loose tongue | my knees have not hurt since
a camping stove | the small size | the weak flame in the wind | tea is ready in four minutes
a desk lamp | the warm light | the wobbly foot | my eyes are less tired in the evening
a rain jacket | the deep pockets | the noisy fabric | I stayed dry for three days in the mountains
a mechanical keyboard | the clear feel of the keys | the loud space bar | I type faster than before
a baby carriage | the one-hand folding | the narrow basket | it even manages cobblestones
a slow cooker | the simple dial | the heavy lid | beans come out soft every time
a digital piano | the weighted keys | the thin sound of the speakers | I can practice at night with headphones
a cordless drill | the strong battery | the missing case | it went through brick without a problem
a yoga mat | the good grip | the smell in the first week | I no longer slip
a tent for two people | the fast setup | the low ceiling | it survived a night of storm
a bread knife | the sharp blade | the slippery handle | it cuts tomatoes as well
a city bike | the smooth gears | the hard saddle | the way to work now takes twelve minutes
a cat fountain | the quiet pump | the filters that have to be replaced monthly | my cat drinks more
a portable speaker | the deep bass | the confusing app | it fell into the pool and still plays
a board game | the funny cards | the thin rule book | we laughed for two hours
a mattress | the firm middle | the weight | my back is better in the morning
a travel mug | the tight lid | the paint that peels off | coffee stays hot until noon
""")
VERDICTS = lines("""
recommended | All in all I would buy it again. | four stars out of five
too expensive | At this price I expect more. | three stars
returned | After two weeks I sent it back. | two stars
gift | I bought it as a present for {first}, who is very happy with it. | five stars
second purchase | It is the second one we own, since my partner kept borrowing mine. | five stars
good service | Customer service replaced a faulty part within {n1} days. | four stars
bad service | I wrote to customer service {n2} times and never heard back. | one star, although the product is fine
compared with a cheaper one | Compared with the cheaper one I had before, the difference is smaller than I thought. | three and a half stars
""")
REVIEW = Genre(
    "review",
    (("item | pro | con | story", *PRODUCTS), ("kind | verdict | stars", *VERDICTS)),
    (
        ("I have been using this for {n1} months now. It is {item} of the middle price range, and I paid {m2} euros.", "Bought in {month} after long research: {item}.", "Let me say first that I am picky. I was looking for {item} that lasts more than a year."),
        ("What I like best is {pro}.", "The great strength is {pro}, no question.", "{pro_cap} won me over from the first day."),
        ("One example: {story}.", "To give you an idea, {story}.", "I can report that {story}."),
        ("What bothers me is {con}.", "Less convincing: {con}.", "Not everything is perfect, and {con} should be mentioned."),
        ("The delivery took {n2} days and the box was slightly dented.", "It arrived a day early and well packed.", "The manual comes in {n4} languages, but the pictures are tiny.", ""),
        ("The color looks different from the picture, which I do not mind.", "Assembly took me {n5} minutes without tools.", "My neighbor {first2} has the older model and says the new one is better made.", ""),
        ("{verdict} My rating: {stars}.", "{verdict} I give it {stars}."),
    ),
    ("List the pros and cons from this review.\n\n{text}", "Would this reviewer buy the product again? Answer in one sentence and give the reason.\n\n{text}", "{text}\n\nShorten this review to at most {words} words, and keep the tone.", "Write a title for this review and a one-line verdict.\n\n{text}"),
)  # fmt: skip

STUDIES = lines("""
a daily walk of 30 minutes | resting blood pressure | fell by {n1} mmHg on average | the effect was larger in people who slept badly | adults over 65
a school garden | vegetables eaten a day | rose by half a portion | the effect faded after the summer vacation | primary school pupils
noise-reducing windows | hours of sleep | rose by {n4} minutes a night | only bedrooms facing the street benefited | residents of busy streets
free bus tickets | trips by car | fell by {p1} percent | families with two cars changed least | commuters
reading aloud at home | vocabulary at school entry | grew by {p1} percent | ten minutes a day were enough | families with young children
standing desks | back pain | decreased slightly | a third of the participants sat down again after a month | office workers
a later start of school | grades in the first two lessons | improved a little | absences dropped more clearly | pupils aged 14 to 16
weekly choir singing | well-being scores | rose by {n1} points | the social contact may explain more than the music | retired people
planting flower strips | the number of wild bees | more than doubled | the width of the strips mattered less than their number | farms
a sugar tax | sales of soft drinks | fell by {p1} percent | sales of juice rose at the same time | shops
remote work on two days a week | the number of completed tasks | stayed the same | staff turnover fell by {p2} percent | employees
reminder messages by phone | missed appointments | fell by {p1} percent | a friendly tone worked better than a strict one | patients of general practices
cold showers | days of sick leave | fell by {p1} percent | the number of days with symptoms did not change | employees of a hospital
a mentoring program | drop-out rates | fell from {p2} to {n4} percent | the first six weeks were decisive | first-year students
trees along the street | surface temperature in July | was {n1} degrees lower | young trees had almost no effect | streets
meal kits | food waste | fell by {p1} percent | packaging waste rose | households
chess lessons | scores in a maths test | did not change | patience in a puzzle task improved | primary school pupils
smart meters | use of electricity | fell by {n1} percent | a comparison with neighbors doubled the effect | households
""")
DESIGNS = lines("""
randomized trial | We carried out a randomized trial with {c2} {who} over {n3} months. One half was assigned to the intervention, the other half continued as before. | The trial was not blinded, so that expectations could have influenced the results.
observational study | In an observational study, we followed {c1} {who} for {n3} months and compared those with and without the intervention. | Since nobody was assigned at random, other differences between the groups may explain part of the effect.
pilot study | In a small pilot study, {n4} {who} were observed for {n1} weeks before and {n1} weeks after the change. | The sample was small and came from a single region.
natural experiment | We used the fact that the change came to {town} a year earlier than to the towns around it, and compared {c1} {who}. | The towns may differ in other ways.
long-term follow-up | We came back to {c2} {who} who had taken part in a trial {n1} years ago. | {p1} percent could no longer be reached.
review of studies | We reviewed {n4} earlier studies with {c1} {who} in total. | The studies differed in quality, and small ones with null results may be missing.
""")
ABSTRACT = Genre(
    "abstract",
    (("treatment | outcome | effect | detail | who", *STUDIES), ("design | method | limit", *DESIGNS)),
    (
        ("Background: It is not clear whether {treatment} can change the following outcome: {outcome}.", "The effect of {treatment} has long been debated. We looked at one outcome, {outcome}.", "Objective. To examine the effect of {treatment} on a single outcome: {outcome}."),
        ("{method}", "Methods: {method}"),
        ("Results: The measured outcome, {outcome}, {effect}.", "With the intervention, {outcome} {effect}; without it there was no change worth mentioning.", "We found that {outcome} {effect} (confidence intervals are given in the paper)."),
        ("In addition, {detail}.", "A secondary analysis showed that {detail}."),
        ("Costs were low, at {n5} euros per case.", "Acceptance was high, at {p3} percent.", "No harmful effects were reported.", ""),
        ("Limitations: {limit}", "{limit}", "{limit} The season may have played a role as well."),
        ("Conclusion: the approach is cheap and deserves a larger study.", "We conclude that further studies should look at long-term effects.", "The findings support a cautious introduction, along with monitoring."),
    ),
    ("Explain the result of this abstract to someone who never reads studies.\n\n{text}", "TL;DR of this abstract:\n\n{text}", "What was done, what was found, and how sure can we be? One sentence each.\n\n{text}", "{text}\n\nWrite a one-sentence takeaway for a newspaper, without exaggeration."),
)  # fmt: skip

HEROES = lines("""
a shy lighthouse keeper | the island | an old brass telescope
a young baker | the market street | her grandmother's recipe book
a retired postman | the hill village | a letter without a stamp
a girl who repaired radios | the harbor district | a broken radio
a clumsy tailor | the castle town | a coat of many pockets
an old ferryman | the river crossing | a lantern of blue glass
a boy who counted stars | the desert inn | a notebook with a lock
a librarian | the mountain town | a book that was never returned
a clockmaker | the old quarter | a clock that ran backwards
a beekeeper | the orchard | a jar of golden honey
a violin player | the railway station | a violin with three strings
a mapmaker | the edge of the forest | a map with a white spot
a fisherwoman | the northern bay | a net that never tore
a gardener | the royal park | a seed the size of a pea
a night watchman | the museum | a key that fitted no door
""")
PLOTS = lines("""
lost and found | One morning {the_thing} was gone. | it turned out that a magpie had carried it to the roof | what we look for is often right above us
a stranger | One evening a stranger knocked and asked for {the_thing}. | the stranger turned out to be the former owner and left it behind as a gift | kindness comes back
a storm | Then came a storm that lasted {n1} days. | {the_thing} was all that was left, and it was enough to start again | little is needed to begin anew
a contest | A contest was announced, with a prize of {c2} coins. | the prize went to someone else, but the people of the place remembered {the_thing} for years | winning is not everything
a promise | Years ago a promise had been made to a friend, and {the_thing} was the reminder. | the friend came back on the very last day | a promise is worth the wait
a mistake | By mistake, {the_thing} was given away at the yearly sale. | the new owner returned it and became a partner in business | honesty pays off
a rumor | A rumor spread that {the_thing} brought bad luck. | a child asked to hold it, laughed, and the rumor was over | fear vanishes when we look closely
a journey | One day a journey of {n4} days became necessary, and {the_thing} had to come along. | it was traded for water at the worst moment and found again on the way back | some things are worth more than their price
""")
STORY = Genre(
    "story",
    (("hero | place | thing", *HEROES), ("plot | turn | end | moral", *PLOTS)),
    (
        ("There once was {hero} who lived near {place}.", "{hero_cap} lived near {place}, as far back as anyone could remember.", "This is the story of {hero}, told to me near {place}."),
        ("The dearest possession in the house was {thing}.", "Nothing was more precious there than {thing}."),
        ("Every day passed like the one before: work until {hour} o'clock, soup, and an hour at the window.", "People in {town} smiled about such a quiet life, but they also came for advice.", "Life was simple, and visitors were rare except on {day}s."),
        ("{turn}",),
        ("At first nobody knew what to do.", "For {n1} nights there was no sleep in the house.", "The neighbors offered help, each with a different plan."),
        ("{first}, a child from next door, asked so many questions that an idea was born.", "An aunt named {first2} advised patience, as aunts do.", "Even the dog seemed worried.", ""),
        ("In the end, {end}.", "And then, when hope was almost gone, {end}."),
        ("Since then, a sign has hung above the door: {moral}.", "Those who tell the story today like to add that {moral}.", ""),
    ),
    ("Retell this story in three sentences for a five-year-old.\n\n{text}", "What is the moral of the story? Summarize the plot first, in one sentence.\n\n{text}", "{text}\n\nSuggest a title and write a back-cover text of at most {words} words."),
)  # fmt: skip

RULES = lines("""
working from home | work from home on up to two days a week | tell the team by the evening before | those in their first three months
bringing dogs to the office | bring a dog on one day a week | keep it on a leash in the hallways | dogs that are not vaccinated
the use of company cars | use company cars for private trips on weekends | enter every trip in the log | trips abroad
borrowing tools from the library of things | borrow up to three tools for a week | clean them before returning | power saws, which need a short training
the quiet coach of the train | reserve seats in the quiet coach | switch phones to silent | families with children under six, who find their own coach
the allotment gardens | rent a plot for a year at a time | use at least a third of it for fruit and vegetables | plots next to the stream
travel expenses | claim meals up to {m2} euros a day | hand in receipts within {n4} days | trips of less than eight hours
the fitness room | use the fitness room from six in the morning to ten at night | wipe the machines after use | guests
the school's phones policy | bring phones to school | leave them in the locker until the last lesson | pupils with a medical reason
the shared laundry room | reserve two slots of three hours a week | empty the lint filter | Sundays, on which machines must not run after noon
visits on the ward | visit between two and seven | disinfect their hands at the entrance | the intensive care unit, where visits need an appointment
the returns of online orders | return unused items within {n4} days | use the label in the box | earrings and swimwear
the book club's lending box | keep a book for {n1} weeks | write the date on the card | signed copies
the use of the meeting rooms | book rooms for up to half a day | cancel unused bookings | the large hall, which the secretary assigns
""")
CHANGES = lines("""
new fee | A fee of {n4} euros is charged when the rule is broken for the second time. | because of repeated problems
stricter | The old rule was more generous and ends in {month}. | after complaints by {n4} people
trial | This is a trial until {month}, after which the rule will be reviewed. | as an experiment
contact | Questions go to {person}, office {c2}. | to answer frequent questions
exception on request | Exceptions are possible if asked for in writing {n1} days ahead. | to make things fairer
old agreements | Existing agreements remain valid until the end of the year. | to bring all sites in line
""")
POLICY = Genre(
    "notice",
    (("about | right | duty | except", *RULES), ("change | extra | why", *CHANGES)),
    (
        ("New rules for {about}", "Notice: {about}", "To everyone: changes about {about}"),
        ("From {date} on, you may {right}.", "As of {date}, everybody may {right}.", "Starting on {date}, the following applies. You may {right}."),
        ("In return, please {duty}.", "You are asked to {duty}.", "The most important duty is to {duty}."),
        ("Not covered: {except}.", "There is one restriction. It concerns {except}.", "The rule does not extend to {except}."),
        ("{extra}",),
        ("We introduce this {why}. The committee discussed it in {n1} meetings.", "The change was decided {why}, with {n5} votes in favor and {n2} against."),
        ("A similar rule has been in force in {town} for {n1} years and works well there.", "Please read the full text, {n6} pages, on the notice board.", "Earlier versions of this notice are no longer valid."),
        ("Thank you for your understanding.", "We wish you a good start with the new rules.", ""),
    ),
    ("Put this notice into three short rules: allowed, required, not covered.\n\n{text}", "Rewrite the notice as a text message of at most {words} words.\n\n{text}", "{text}\n\nWhat do I have to do, and from when on? Answer briefly."),
    titled=True,
)  # fmt: skip

GENRES = {
    "local news": LOCAL_NEWS,
    "incident": INCIDENT_NEWS,
    "business": BUSINESS_NEWS,
    "sports": SPORT_NEWS,
    "meeting": MEETING_NOTES,
    "post-mortem": POSTMORTEM,
    "e-mail": EMAILS,
    "support": SUPPORT_CHAT,
    "review": REVIEW,
    "abstract": ABSTRACT,
    "story": STORY,
    "policy": POLICY,
}

ASKS = (
    "Summarize the following {noun} in one sentence.\n\n{text}",
    "Summarize the {noun} below in {n} bullet points.\n\n{text}",
    "Summarize: {flat}",
    "TL;DR?\n\n{text}",
    "{text}\n\nTL;DR",
    "{text}\n\nSummarize the {noun} above in at most {words} words.",
    "Give me the gist of this {noun} in two sentences.\n\n{text}",
    "Write a headline for the following {noun}.\n\n{text}",
    "Summarize this {noun} for a child of {age}.\n\n{text}",
    "What are the key facts in this {noun}? Keep all names and numbers.\n\n{text}",
    "Please condense the text to a third of its length.\n\n{text}",
    "Write a neutral summary of this {noun} in {tense} tense, {words} words at most.\n\n{text}",
    "Here is {a_noun}. What is it about?\n\n\"{text}\"",
    "Text:\n{text}\n\nSummary:",
    "### Task\nSummarize the {noun}.\n\n### Input\n{text}\n\n### Output",
    "Read the {noun} and finish the sentence: \"In short, ...\"\n\n{text}",
    "Give this {noun} a title, then summarize it in one or two sentences.\n\n{text}",
    "Which three pieces of information in this {noun} matter most? Order them by importance.\n\n{text}",
    "I only have ten seconds. Sum this up.\n\n{text}",
    "Summarize this {noun} in simple English for a language learner.\n\n{text}",
    "Write {n} questions that this {noun} answers, each with a short answer.\n\n{text}",
)  # fmt: skip


def tasks() -> Iterator[tuple[str, Writer]]:
    """Every combination of facts with its writer; wording, names, numbers and the form of the summary are drawn."""
    for name, genre in GENRES.items():
        tables = [
            [dict(zip(header.split(" | "), cells, strict=True)) for cells in rows(table)]
            for header, *table in genre.facts
        ]
        for group in product(*tables):
            slots = {key: cell for facts in group for key, cell in facts.items()}
            subject = ", ".join(next(iter(facts.values())) for facts in group)
            yield f"{name}: {subject}", partial(write, genre, slots)


def write(genre: Genre, slots: dict[str, str], rng: random.Random) -> str:
    """One prompt: a passage about the facts, and the summary wanted."""
    drawn = details(rng)
    values = drawn | slots
    for _ in range(2):  # a cell may speak of another, such as the event of its place, which may hold a number
        values |= {f"{slot}_cap": capital(values[slot]) for slot in slots}
        values["the_thing"] = re.sub("^an? ", "the ", values.get("thing", ""))
        values |= {slot: values[slot].format_map(values) for slot in (*slots, *(f"{slot}_cap" for slot in slots))}
    chosen = [rng.choice(alternatives) for alternatives in genre.sentences]
    for place in genre.aligned:
        chosen[place] = genre.sentences[place][genre.sentences[genre.aligned[0]].index(chosen[genre.aligned[0]])]
    if genre.titled:
        chosen[:2] = [f"{chosen[0]}\n\n{chosen[1]}"]
    text = genre.joint.join(sentence.format_map(values) for sentence in chosen if sentence)
    own = genre.asks and rng.random() < 0.35
    request = rng.choice(genre.asks if own else ASKS)
    return fill(
        rng,
        request,
        text=text,
        flat=" ".join(text.split()),
        noun=genre.noun,
        a_noun=an(genre.noun),
        first3=drawn["first3"],
        n=(2, 3, 4, 5),
        words=(15, 20, 25, 30, 40, 50),
        age=(6, 7, 9, 10, 12),
        tense=("past", "present"),
    )


def details(rng: random.Random) -> dict[str, str]:
    """Names, dates and numbers for one passage."""
    first = rng.sample(FIRST_NAMES, 7)
    last = rng.sample(LAST_NAMES, 3)
    town, town2 = rng.sample(TOWNS, 2)
    day, day2 = rng.sample(DAYS, 2)
    start = rng.randint(1, 7)
    place = rng.randrange(12)
    month = MONTHS[(place + rng.randint(1, 5)) % 12]
    score = sorted(rng.sample(range(6), 2), reverse=True)
    found: dict[str, object] = {
        "person": f"{first[4]} {last[0]}",
        "person2": f"{first[5]} {last[1]}",
        "person3": f"{first[6]} {last[2]}",
        "first": first[0],
        "first2": first[1],
        "first3": first[2],
        "first4": first[3],
        "town": town,
        "club": town,
        "club2": town2,
        "day": day,
        "day2": day2,
        "month": month,
        "date": f"{MONTHS[place]} {rng.randint(1, 28)}",
        "hour": start,
        "hour2": start + rng.randint(1, 2),
        "hour3": start + rng.randint(2, 4),
        "minute": f"{rng.randrange(0, 60, 5):02d}",
        "minute2": f"{rng.randrange(0, 60, 5):02d}",
        "half": rng.choice(("am", "pm")),
        "clock": rng.choice(("9 am", "10 am", "11 am", "1 pm", "2 pm", "3 pm", "4 pm")),
        "nth": rng.choice(("second", "third", "fourth", "fifth", "seventh")),
        "n1": rng.randint(2, 7),
        "n2": rng.randint(2, 5),
        "n3": rng.randint(6, 20),
        "n4": rng.randint(9, 36),
        "n5": rng.randint(12, 40),
        "n6": rng.randint(10, 30),
        "p4": rng.randint(49, 63),
        "p5": rng.randint(21, 34),
        "p6": rng.randint(35, 75),
        "p1": rng.randint(6, 19),
        "p2": rng.randint(21, 48),
        "p3": rng.randint(81, 97),
        "m1": rng.randint(3, 90),
        "m2": rng.randrange(25, 190, 5),
        "c1": rng.randrange(400, 9000, 50),
        "c2": rng.randint(42, 260),
        "a": score[0],
        "b": score[1],
        "x": rng.randint(84, 99),
        "y": rng.randint(61, 83),
        "h": rng.randint(28, 35),
        "g": rng.randint(20, 27),
        "k": rng.randint(8, 15),
        "t": rng.randint(24, 38),
        "k2": rng.randint(9, 21),
        "s": rng.choice(("nil", "one", "two")),
    }
    return {slot: str(value) for slot, value in found.items()}
